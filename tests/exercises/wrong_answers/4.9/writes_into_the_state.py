"""Writes into the state."""

import torch

DIAGNOSIS = "input-changed"


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    base = new_m.masked_fill(new_m == float("-inf"), 0)
    weights = torch.exp(scores - base[..., None])
    rescale = torch.exp(m - base)
    total *= rescale
    total += weights.sum(dim=-1)
    acc *= rescale[..., None]
    acc += weights @ v
    return new_m, total, acc
