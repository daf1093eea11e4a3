"""No minus anywhere."""

import torch

DIAGNOSIS = "no-minus"


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return x * torch.cat([cos, cos], -1)[:, None] + swapped * torch.cat([sin, sin], -1)[:, None]
