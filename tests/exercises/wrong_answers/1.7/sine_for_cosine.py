"""Sine for cosine."""

import torch

DIAGNOSIS = "cos-and-sin-swapped"


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * sin - second * cos, second * sin + first * cos], dim=-1)
