"""Window from the row."""

import torch

DIAGNOSIS = "window-from-the-row"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    visible = j <= i
    if window is not None:
        visible &= j > torch.arange(queries, device=device)[:, None] - window
    return visible
