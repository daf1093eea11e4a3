"""Sees only the future."""

import torch

DIAGNOSIS = "mask-inverted"


def causal_attention(q, k, v, scale, window=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    hidden = torch.ones(len(q), len(k)).tril(len(k) - len(q) - 1).bool()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
