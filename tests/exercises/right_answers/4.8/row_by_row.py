"""Row by row."""

import torch


def causal_mask(queries, keys, window, device):
    visible = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    for row in range(queries):
        stop = max(0, keys - queries + row + 1)
        start = 0 if window is None else max(0, stop - window)
        visible[row, start:stop] = True
    return visible
