"""Gives probabilities."""

import torch

DIAGNOSIS = "returns-probabilities"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ordered, ids = logits.softmax(-1).sort(dim=-1, descending=True)
    ordered = torch.where(ordered.cumsum(-1) - ordered >= top_p, 0.0, ordered)
    kept = torch.zeros_like(logits).scatter(-1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)
