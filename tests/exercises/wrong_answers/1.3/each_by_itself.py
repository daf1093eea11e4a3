"""Each by itself."""

import torch

DIAGNOSIS = "threshold"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    return torch.where(torch.softmax(logits, -1) < top_p, float("-inf"), logits)
