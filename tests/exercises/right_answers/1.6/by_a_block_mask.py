"""By a block mask."""

import torch


def ragged_attention(q, keys, values, query_lens, scale, window=None):
    k, v = torch.cat(keys), torch.cat(values)
    groups = q.shape[1] // k.shape[1]
    visible = torch.zeros(len(q), len(k), dtype=torch.bool)
    top = left = 0
    for length, key in zip(query_lens, keys):
        for i in range(length):
            end = len(key) - length + i + 1
            first = 0 if window is None else max(0, end - window)
            visible[top + i, left + first : left + end] = True
        top, left = top + length, left + len(key)
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(groups, 1)) * scale
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(groups, 1))
