"""None is no number."""

import torch

DIAGNOSIS = "exception"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    return (j <= i) & (j > i - window)
