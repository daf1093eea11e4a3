"""Tiles again."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "heads-tiled"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    group = q.shape[1] // k.shape[1]
    return multi_head(q, k.repeat(1, group, 1), v.repeat(1, group, 1), scale, visible)
