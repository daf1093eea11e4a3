"""Joins in the other order."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "heads-tiled"


def expand_kv_heads(kv, heads):
    tokens, kv_heads, dim = kv.shape
    return kv[:, None].expand(tokens, heads // kv_heads, kv_heads, dim).reshape(tokens, heads, dim)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
