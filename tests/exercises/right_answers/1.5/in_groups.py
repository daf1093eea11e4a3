"""In groups."""

import torch


def causal_attention(q, k, v, scale, window=None):
    queries, heads, dim = q.shape
    keys, kv_heads, _ = k.shape
    grouped = q.reshape(queries, kv_heads, heads // kv_heads, dim) * scale
    scores = torch.einsum("qgrd,kgd->grqk", grouped, k)
    behind = (torch.arange(queries)[:, None] + keys - queries) - torch.arange(keys)
    hidden = (behind < 0) | (behind >= (window or keys))
    scores = torch.where(hidden, torch.tensor(float("-inf"), dtype=q.dtype), scores)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("grqk,kgd->qgrd", weights, v).reshape(queries, heads, -1)
