"""By distance."""

import torch


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    back = i - j  # how far back a key lies
    if window is None:
        return back >= 0
    return (back >= 0) & (back < window)
