"""Tril top left."""

import torch

DIAGNOSIS = "mask-top-left"


def causal_mask(queries, keys, window, device):
    visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()
    if window is not None:
        visible = visible.triu(1 - window)
    return visible
