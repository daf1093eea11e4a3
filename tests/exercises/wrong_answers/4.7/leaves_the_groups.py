"""Leaves the groups."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "group-not-joined"


def expand_kv_heads(kv, heads):
    return kv.unsqueeze(2).expand(-1, -1, heads // kv.shape[1], -1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
