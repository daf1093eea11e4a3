"""Less the larger unguarded."""

import torch

DIAGNOSIS = "two-empty-parts"


def merge(out_a, lse_a, out_b, lse_b):
    larger = torch.maximum(lse_a, lse_b)
    weight_a, weight_b = torch.exp(lse_a - larger), torch.exp(lse_b - larger)
    total = weight_a + weight_b
    return (weight_a[..., None] * out_a + weight_b[..., None] * out_b) / total[..., None], larger + torch.log(total)
