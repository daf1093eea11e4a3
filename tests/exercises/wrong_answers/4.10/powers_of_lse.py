"""Powers of lse."""

import torch

DIAGNOSIS = "overflow"


def merge(out_a, lse_a, out_b, lse_b):
    power_a, power_b = torch.exp(lse_a), torch.exp(lse_b)
    total = power_a + power_b
    weight_a, weight_b = power_a / total, power_b / total
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out, total.log()
