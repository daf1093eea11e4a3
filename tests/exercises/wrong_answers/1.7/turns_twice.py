"""Turns twice."""

import torch

DIAGNOSIS = None


def apply_rope(x, cos, sin):
    cos, sin = cos[:, None], sin[:, None]
    for _ in range(2):
        first, second = x.chunk(2, -1)
        x = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return x
