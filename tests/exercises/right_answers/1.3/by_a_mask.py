"""By a mask."""

import torch


def greedy(logits):
    return logits.max(dim=-1).indices


def top_p_filter(logits, top_p):
    ids = torch.argsort(logits, dim=-1, descending=True, stable=True)
    cumulative = torch.cumsum(torch.softmax(logits, dim=-1).gather(-1, ids), dim=-1)
    drop = torch.cat([torch.zeros_like(cumulative[:, :1]), cumulative[:, :-1]], dim=-1) >= top_p
    return logits.masked_fill(drop.gather(-1, ids.argsort(dim=-1)), float("-inf"))
