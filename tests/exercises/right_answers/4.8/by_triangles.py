"""By triangles."""

import torch


def causal_mask(queries, keys, window, device):
    whole = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return whole if window is None else whole.triu(keys - queries - window + 1)
