"""A view of groups."""

from minillm.attention.variants import multi_head


def expand_kv_heads(kv, heads):
    tokens, kv_heads, dim = kv.shape
    return kv[:, :, None].expand(-1, -1, heads // kv_heads, -1).reshape(tokens, heads, dim)


def grouped_query(q, k, v, scale, visible):
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)
