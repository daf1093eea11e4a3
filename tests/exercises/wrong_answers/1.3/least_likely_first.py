"""Least likely first."""

import torch

DIAGNOSIS = "ascending"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ids = logits.argsort(dim=-1)
    ordered = logits.gather(-1, ids)
    probabilities = ordered.softmax(-1)
    ordered = ordered.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, float("-inf"))
    return torch.zeros_like(logits).scatter(-1, ids, ordered)
