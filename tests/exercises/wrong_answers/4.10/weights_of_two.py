"""Weights of two."""

import torch

DIAGNOSIS = "base-two"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    base = lse.masked_fill(lse == float("-inf"), 0)
    return torch.exp2(lse_a - base)[..., None] * out_a + torch.exp2(lse_b - base)[..., None] * out_b, lse
