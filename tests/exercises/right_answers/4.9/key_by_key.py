"""Key by key."""

import torch


def online_softmax_update(scores, v, m, total, acc):
    for key in range(scores.shape[-1]):
        score = scores[..., key]  # [H, B]
        new_m = torch.maximum(m, score)
        base = torch.where(new_m == float("-inf"), 0, new_m)
        weight, rescale = torch.exp(score - base), torch.exp(m - base)
        m, total = new_m, total * rescale + weight
        acc = acc * rescale[..., None] + weight[..., None] * v[:, None, key]
    return m, total, acc
