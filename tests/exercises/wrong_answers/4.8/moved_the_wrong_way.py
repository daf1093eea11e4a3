"""Moved the wrong way."""

import torch

DIAGNOSIS = "offset-backwards"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + queries - keys
    j = torch.arange(keys, device=device)
    visible = j <= i
    if window is not None:
        visible &= j > i - window
    return visible
