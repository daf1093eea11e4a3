"""A large finite number below."""

import torch


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    base = new_m.clamp(min=-1e30)  # far below every score, and far above -inf
    weights, rescale = torch.exp(scores - base[..., None]), torch.exp(m - base)
    return new_m, total * rescale + weights.sum(dim=-1), acc * rescale[..., None] + weights @ v
