"""Mask top left and no window."""

import torch

DIAGNOSIS = "mask-top-left"


def causal_attention(q, k, v, scale, window=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, float("-inf")).softmax(-1), v)
