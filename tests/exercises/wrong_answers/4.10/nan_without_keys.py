"""Nan without keys."""

import torch

DIAGNOSIS = "two-empty-parts"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - lse), torch.exp(lse_b - lse)
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out, lse
