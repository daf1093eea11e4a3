"""Stacks copies."""

import torch

from minillm.attention.variants import multi_head


def expand_kv_heads(kv, heads):
    group = heads // kv.shape[1]
    return torch.stack([kv] * group, dim=2).flatten(1, 2)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
