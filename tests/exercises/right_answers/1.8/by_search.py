"""By search."""

import itertools

import torch

from minillm.attention import reference
from minillm.course.hunts import attention_with_a_bug


def smallest_sizes():
    found = []
    for queries, keys, heads, kv_heads in itertools.product(range(1, 3), range(1, 3), range(1, 7), range(1, 4)):
        if heads % kv_heads or queries > keys:
            continue
        q, k, v = torch.randn(queries, heads, 1), torch.randn(keys, kv_heads, 1), torch.randn(keys, kv_heads, 1)
        if not torch.allclose(attention_with_a_bug(q, k, v, 1.0), reference.causal_attention(q, k, v, 1.0)):
            numbers = queries * heads + 2 * keys * kv_heads
            found.append((numbers, queries, keys, heads, kv_heads))
    _, queries, keys, heads, kv_heads = min(found)
    return {"queries": queries, "keys": keys, "heads": heads, "kv_heads": kv_heads}
