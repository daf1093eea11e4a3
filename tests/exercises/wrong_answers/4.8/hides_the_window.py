"""Hides the window."""

import torch

DIAGNOSIS = "window-inverted"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + (keys - queries)
    j = torch.arange(keys, device=device)[None, :]
    visible = j <= i
    if window is not None:
        visible &= j <= i - window
    return visible
