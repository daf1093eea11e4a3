"""No window."""

import torch

DIAGNOSIS = "window-ignored"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    return j <= i
