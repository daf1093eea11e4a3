"""Sees all."""

import torch

from minillm.attention.variants import multi_head

DIAGNOSIS = "mask-dropped"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    all_seen = torch.ones_like(visible)
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, all_seen)
