"""The larger lse then normalised."""

import torch

DIAGNOSIS = "lse-of-the-larger"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.maximum(lse_a, lse_b)
    base = lse.masked_fill(lse == float("-inf"), 0)
    weight_a, weight_b = torch.exp(lse_a - base), torch.exp(lse_b - base)
    total = (weight_a + weight_b).clamp(min=1e-30)[..., None]
    out = (weight_a[..., None] * out_a + weight_b[..., None] * out_b) / total
    return out, lse
