"""Only this tile."""

import torch

DIAGNOSIS = "old-forgotten"


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    base = new_m.masked_fill(new_m == float("-inf"), 0)
    weights = torch.exp(scores - base[..., None])
    new_total = weights.sum(dim=-1)
    new_acc = weights @ v
    return new_m, new_total, new_acc
