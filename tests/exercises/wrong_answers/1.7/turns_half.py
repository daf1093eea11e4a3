"""Turns half."""

import torch

DIAGNOSIS = "second-half-untouched"


def apply_rope(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos[:, None] - second * sin[:, None], second], dim=-1)
