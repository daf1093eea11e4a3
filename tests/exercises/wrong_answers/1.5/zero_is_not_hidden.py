"""Zero is not hidden."""

import torch

from minillm.attention.reference import causal_mask

DIAGNOSIS = "hidden-is-zero"


def causal_attention(q, k, v, scale, window=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(~causal_mask(len(q), len(k), window, q.device), 0.0)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
