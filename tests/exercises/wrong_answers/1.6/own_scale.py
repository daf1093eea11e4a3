"""Own scale."""

import torch

from minillm.attention.reference import causal_attention

DIAGNOSIS = "scale-not-passed"


def ragged_attention(q, keys, values, query_lens, scale, window=None):
    scale = q.shape[-1] ** -0.5
    pieces = q.split(query_lens)
    return torch.cat([causal_attention(piece, k, v, scale, window) for piece, k, v in zip(pieces, keys, values)])
