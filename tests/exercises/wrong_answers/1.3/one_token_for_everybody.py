"""One token for everybody."""

import torch

DIAGNOSIS = "one-token-for-all"


def greedy(logits):
    return torch.argmax(logits)


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
