"""As it is."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "not-expanded"


def expand_kv_heads(kv, heads):
    return kv


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
