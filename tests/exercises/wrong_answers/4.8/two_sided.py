"""Two sided."""

import torch

DIAGNOSIS = "window-looks-ahead"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    if window is not None:
        return (i - j).abs() < window
    return j <= i
