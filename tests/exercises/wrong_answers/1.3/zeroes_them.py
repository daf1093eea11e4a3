"""Zeroes them."""

import torch

DIAGNOSIS = "zero-instead-of-minus-infinity"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ordered, ids = torch.sort(logits, dim=-1, descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    drop = torch.zeros_like(before, dtype=torch.bool).scatter(-1, ids, before >= top_p)
    return logits * ~drop
