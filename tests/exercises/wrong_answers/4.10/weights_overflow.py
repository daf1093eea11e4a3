"""Weights overflow."""

import torch

DIAGNOSIS = "overflow"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    power_a, power_b = torch.exp(lse_a), torch.exp(lse_b)
    weight_a, weight_b = power_a / (power_a + power_b), power_b / (power_a + power_b)
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out, lse
