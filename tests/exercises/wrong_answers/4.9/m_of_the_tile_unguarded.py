"""M of the tile unguarded."""

import torch

DIAGNOSIS = "m-of-the-tile"


def online_softmax_update(scores, v, m, total, acc):
    new_m = scores.amax(dim=-1)
    weights = torch.exp(scores - new_m[..., None])
    rescale = torch.exp(m - new_m)
    new_total = total * rescale + weights.sum(dim=-1)
    new_acc = acc * rescale[..., None] + weights @ v
    return new_m, new_total, new_acc
