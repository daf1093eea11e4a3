"""Less the larger."""

import torch


def merge(out_a, lse_a, out_b, lse_b):
    m = torch.maximum(lse_a, lse_b)
    m = torch.where(m == float("-inf"), 0, m)
    power_a, power_b = torch.exp(lse_a - m), torch.exp(lse_b - m)
    total = power_a + power_b
    out = (power_a[..., None] * out_a + power_b[..., None] * out_b) / total.masked_fill(total == 0, 1)[..., None]
    return out, total.log() + m
