"""In proportion to lse."""

import torch

DIAGNOSIS = "weighed-by-lse"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = lse_a / (lse_a + lse_b), lse_b / (lse_a + lse_b)
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out, lse
