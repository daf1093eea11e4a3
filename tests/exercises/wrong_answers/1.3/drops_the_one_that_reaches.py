"""Drops the one that reaches."""

import torch

DIAGNOSIS = "nucleus-too-small"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    kept = torch.full_like(logits, float("-inf"))
    for row, line in enumerate(logits):
        total = 0.0
        for token in line.argsort(descending=True).tolist():
            total += line.softmax(-1)[token].item()
            if total > top_p:
                break
            kept[row, token] = line[token]
    return kept
