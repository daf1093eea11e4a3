"""Powers of two."""

import torch

DIAGNOSIS = "base-two"


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp2(lse_a, lse_b)
    return torch.exp2(lse_a - lse)[..., None] * out_a + torch.exp2(lse_b - lse)[..., None] * out_b, lse
