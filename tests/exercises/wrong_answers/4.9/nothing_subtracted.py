"""Nothing subtracted."""

import torch

DIAGNOSIS = "not-shifted"


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    weights = torch.exp(scores)
    new_total = total + weights.sum(dim=-1)
    new_acc = acc + weights @ v
    return new_m, new_total, new_acc
