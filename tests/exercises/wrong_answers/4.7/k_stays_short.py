"""K stays short."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "not-expanded"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    return multi_head(q, k, expand_kv_heads(v, q.shape[1]), scale, visible)
