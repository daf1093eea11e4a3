"""Once for every head."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "as-often-as-heads"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads, dim=1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
