"""Before the queries."""

import torch

DIAGNOSIS = "weight-beside-the-wrong-axis"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    base = lse.masked_fill(lse == float("-inf"), 0)
    weight_a, weight_b = torch.exp(lse_a - base), torch.exp(lse_b - base)
    out = weight_a[None] * out_a + weight_b[None] * out_b
    return out, lse
