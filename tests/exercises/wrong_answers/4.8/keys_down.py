"""Keys down."""

import torch

DIAGNOSIS = "rows-are-keys"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    visible = j <= i
    if window is not None:
        visible &= j > i - window
    return visible.T
