"""No causal."""

import torch

DIAGNOSIS = "not-causal"


def causal_mask(queries, keys, window, device):
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)
    if window is None:
        return torch.ones(queries, keys, dtype=torch.bool, device=device)
    return (j <= i) & (j > i - window)
