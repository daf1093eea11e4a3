"""Hides and turns over."""

import torch


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    hidden = (j > i) | (j <= i - (window or keys))
    return ~hidden
