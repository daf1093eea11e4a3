"""K for v."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "k-and-v-swapped"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    k, v = expand_kv_heads(k, heads), expand_kv_heads(v, heads)
    return multi_head(q, v, k, scale, visible)
