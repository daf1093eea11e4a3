"""Complex numbers."""

import torch


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    numbers = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
    turned = numbers * torch.complex(cos, sin)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)
