"""Sums of powers."""

import torch

DIAGNOSIS = "weights-do-not-sum-to-1"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a), torch.exp(lse_b)
    out = weight_a[..., None] * out_a + weight_b[..., None] * out_b
    return out, lse
