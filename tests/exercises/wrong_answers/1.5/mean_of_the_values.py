"""Mean of the values."""

import torch

from minillm.attention.reference import causal_mask

DIAGNOSIS = None


def causal_attention(q, k, v, scale, window=None):
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    visible = causal_mask(len(q), len(k), window, q.device).to(v.dtype)
    weights = visible / visible.sum(-1, keepdim=True)
    return torch.einsum("qk,khd->qhd", weights, v)
