"""Turns the other way."""

import torch

DIAGNOSIS = "turned-backwards"


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)
