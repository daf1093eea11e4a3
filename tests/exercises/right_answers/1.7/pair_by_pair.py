"""Pair by pair."""

import torch


def apply_rope(x, cos, sin):
    out, half = torch.empty_like(x), x.shape[-1] // 2
    for i in range(half):
        a, b = x[:, :, i], x[:, :, i + half]
        out[:, :, i] = a * cos[:, i, None] - b * sin[:, i, None]
        out[:, :, i + half] = b * cos[:, i, None] + a * sin[:, i, None]
    return out
