"""Hides itself."""

import torch

DIAGNOSIS = "mask-without-self"


def causal_attention(q, k, v, scale, window=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    position = torch.arange(len(q))[:, None] + len(k) - len(q)
    key = torch.arange(len(k))
    hidden = key >= position
    if window is not None:
        hidden |= key <= position - window
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
