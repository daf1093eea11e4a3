"""Factor not widened."""

import torch

DIAGNOSIS = "factor-not-widened"


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    base = new_m.masked_fill(new_m == float("-inf"), 0)
    weights = torch.exp(scores - base[..., None])
    rescale = torch.exp(m - base)
    new_total = total * rescale + weights.sum(dim=-1)
    new_acc = acc * rescale + weights @ v
    return new_m, new_total, new_acc
