"""Pairs of neighbours."""

import torch

DIAGNOSIS = "neighbouring-pairs"


def apply_rope(x, cos, sin):
    out = torch.empty_like(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    out[..., 0::2] = even * cos[:, None] - odd * sin[:, None]
    out[..., 1::2] = odd * cos[:, None] + even * sin[:, None]
    return out
