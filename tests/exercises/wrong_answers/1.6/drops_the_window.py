"""Drops the window."""

import torch

from minillm.attention.reference import causal_attention

DIAGNOSIS = "window-not-passed"


def ragged_attention(q, keys, values, query_lens, scale, window=None):
    pieces = q.split(query_lens)
    return torch.cat([causal_attention(piece, k, v, scale) for piece, k, v in zip(pieces, keys, values)])
