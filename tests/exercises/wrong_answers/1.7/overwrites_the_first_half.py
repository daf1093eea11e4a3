"""Overwrites the first half."""

import torch

DIAGNOSIS = "halves-overwritten"


def apply_rope(x, cos, sin):
    first, second = x.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    first = first * cos - second * sin
    second = second * cos + first * sin
    return torch.cat([first, second], dim=-1)
