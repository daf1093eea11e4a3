"""One ahead."""

import torch

DIAGNOSIS = "mask-one-ahead"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    visible = j <= i + 1
    if window is not None:
        visible &= j > i - window
    return visible
