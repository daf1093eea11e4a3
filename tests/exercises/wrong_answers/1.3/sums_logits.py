"""Sums logits."""

import torch

DIAGNOSIS = "logits-summed"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ordered, ids = torch.sort(logits, dim=-1, descending=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    ordered[before >= top_p] = -torch.inf
    return torch.empty_like(logits).scatter_(-1, ids, ordered)
