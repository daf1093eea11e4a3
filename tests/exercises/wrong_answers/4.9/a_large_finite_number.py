"""A large finite number."""

import torch

DIAGNOSIS = "hidden-counts"


def online_softmax_update(scores, v, m, total, acc):
    scores = scores.clamp(min=-1e30)
    new_m = torch.maximum(m, scores.amax(dim=-1))
    weights = torch.exp(scores - new_m[..., None])
    rescale = torch.exp(m - new_m)
    new_total = total * rescale + weights.sum(dim=-1)
    new_acc = acc * rescale[..., None] + weights @ v
    return new_m, new_total, new_acc
