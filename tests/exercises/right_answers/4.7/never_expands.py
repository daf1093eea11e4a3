"""Never expands."""

import torch


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    queries = q.unflatten(1, (k.shape[1], -1))  # [S_q, H_kv, H / H_kv, D]
    scores = torch.einsum("qngd,knd->ngqk", queries, k) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("ngqk,knd->qngd", weights, v).flatten(1, 2)
