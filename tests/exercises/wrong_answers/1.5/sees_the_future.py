"""Sees the future."""

import torch

DIAGNOSIS = "no-mask"


def causal_attention(q, k, v, scale, window=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    weights = (torch.einsum("qhd,khd->hqk", q, k) * scale).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)
