"""Asks the package."""

from minillm.attention import variants

DIAGNOSIS = "forbidden"


def expand_kv_heads(kv, heads):
    return kv.repeat_interleave(heads // kv.shape[1], dim=1)


def grouped_query(q, k, v, scale, visible):
    return variants.grouped_query(q, k, v, scale, visible)
