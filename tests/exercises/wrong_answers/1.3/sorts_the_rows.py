"""Sorts the rows."""

import torch

DIAGNOSIS = "across-rows"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ordered, ids = logits.sort(dim=0, descending=True, stable=True)
    probabilities = ordered.softmax(0)
    ordered[probabilities.cumsum(0) - probabilities >= top_p] = float("-inf")
    return torch.zeros_like(logits).scatter(0, ids, ordered)
