"""Neighbours to halves."""

import torch

DIAGNOSIS = "neighbouring-pairs"


def apply_rope(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)
