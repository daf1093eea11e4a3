"""No shared heads."""

import torch

from minillm.attention.reference import causal_mask

DIAGNOSIS = "exception"


def causal_attention(q, k, v, scale, window=None):
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(~causal_mask(len(q), len(k), window, q.device), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
