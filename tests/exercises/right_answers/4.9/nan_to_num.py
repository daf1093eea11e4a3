"""Nan to num."""

import torch


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.cat([m[..., None], scores], dim=-1).amax(dim=-1)
    weights = (scores - new_m[..., None]).exp().nan_to_num(0)
    rescale = (m - new_m).exp().nan_to_num(0)
    return new_m, total * rescale + weights.sum(-1), acc * rescale[..., None] + weights @ v
