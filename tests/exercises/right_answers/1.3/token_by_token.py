"""Token by token."""

import torch


def greedy(logits):
    return torch.tensor([max(range(len(row)), key=row.__getitem__) for row in logits.tolist()])


def top_p_filter(logits, top_p):
    kept = torch.full_like(logits, float("-inf"))
    for row, line in enumerate(logits):
        probabilities, held = line.softmax(-1), 0.0
        for token in line.argsort(descending=True, stable=True):
            if held >= top_p:
                break
            held += float(probabilities[token])
            kept[row, token] = line[token]
    return kept
