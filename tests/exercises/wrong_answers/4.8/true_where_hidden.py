"""True where hidden."""

import torch

DIAGNOSIS = "mask-inverted"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    hidden = j > i
    if window is not None:
        hidden |= j <= i - window
    return hidden
