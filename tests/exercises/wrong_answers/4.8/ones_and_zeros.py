"""Ones and zeros."""

import torch

DIAGNOSIS = "numbers-instead"


def causal_mask(queries, keys, window, device):
    mask = torch.ones(queries, keys, device=device).tril(keys - queries)
    return mask if window is None else mask.triu(keys - queries - window + 1)
