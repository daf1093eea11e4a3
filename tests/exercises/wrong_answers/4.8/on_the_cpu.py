"""On the cpu."""

import torch

DIAGNOSIS = "device-ignored"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries)[:, None] + keys - queries
    j = torch.arange(keys)
    visible = j <= i
    if window is not None:
        visible &= j > i - window
    return visible
