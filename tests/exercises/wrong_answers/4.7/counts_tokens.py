"""Counts tokens."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "group-of-tokens"


def expand_kv_heads(kv, heads):
    group = heads // len(kv)
    return kv.repeat_interleave(group, dim=1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
