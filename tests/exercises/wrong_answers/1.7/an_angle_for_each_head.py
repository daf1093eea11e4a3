"""An angle for each head."""

import torch

DIAGNOSIS = "angle-by-head"


def apply_rope(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
