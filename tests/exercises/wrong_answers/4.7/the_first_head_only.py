"""The first head only."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "one-head-for-all"


def expand_kv_heads(kv, heads):
    return kv[:, :1].expand(-1, heads, -1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
