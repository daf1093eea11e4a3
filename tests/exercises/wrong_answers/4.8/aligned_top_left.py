"""Aligned top left."""

import torch

DIAGNOSIS = "mask-top-left"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None]
    j = torch.arange(keys, device=device)
    visible = j <= i
    if window is not None:
        visible &= j > i - window
    return visible
