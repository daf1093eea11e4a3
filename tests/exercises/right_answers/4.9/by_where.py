"""By where."""

import torch


def online_softmax_update(scores, v, m, total, acc):
    new_m = torch.maximum(m, scores.max(dim=-1).values)
    seen = new_m != float("-inf")
    weights = torch.where(seen[..., None], torch.exp(scores - new_m[..., None]), 0)
    rescale = torch.where(seen, torch.exp(m - new_m), 0)
    return (new_m, rescale * total + weights.sum(-1),
            rescale[..., None] * acc + torch.einsum("hqk,hkd->hqd", weights, v))
