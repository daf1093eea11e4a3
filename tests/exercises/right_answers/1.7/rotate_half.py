"""Rotate half."""

import torch


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos.repeat(1, 2).unsqueeze(1) + rotated * sin.repeat(1, 2).unsqueeze(1)
