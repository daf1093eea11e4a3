"""Only the factor is safe."""

import torch

DIAGNOSIS = "empty-row-is-nan"


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.amax(dim=-1))
    weights = torch.exp(scores - new_m[..., None])
    rescale = torch.exp(m - new_m).masked_fill(m == float("-inf"), 0)
    new_total = total * rescale + weights.sum(dim=-1)
    new_acc = acc * rescale[..., None] + weights @ v
    return new_m, new_total, new_acc
