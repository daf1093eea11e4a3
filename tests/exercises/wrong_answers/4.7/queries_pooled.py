"""Queries pooled."""

from minillm.attention.variants import multi_head

DIAGNOSIS = "shape"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    q = q.unflatten(1, (k.shape[1], -1)).mean(dim=2)
    return multi_head(q, k, v, scale, visible)
