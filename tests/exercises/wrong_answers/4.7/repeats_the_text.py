"""Repeats the text."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "tokens-repeated"


def expand_kv_heads(kv, heads):
    return kv.repeat(heads // kv.shape[1], 1, 1)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
