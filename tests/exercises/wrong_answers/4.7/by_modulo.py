"""By modulo."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "heads-tiled"


def expand_kv_heads(kv, heads):
    return kv[:, [head % kv.shape[1] for head in range(heads)]]


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
