"""Counts from the end."""

import torch

DIAGNOSIS = "window-of-the-text"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    visible = j <= i
    if window is not None:
        visible[:, : max(0, keys - window)] = False
    return visible
