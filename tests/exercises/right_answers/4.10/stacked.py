"""Stacked."""

import torch


def merge(out_a, lse_a, out_b, lse_b):
    lse = torch.stack([lse_a, lse_b])  # [2, S_q, H]
    weights = torch.softmax(lse, dim=0).nan_to_num(0)
    return (weights[..., None] * torch.stack([out_a, out_b])).sum(0), lse.logsumexp(0)
