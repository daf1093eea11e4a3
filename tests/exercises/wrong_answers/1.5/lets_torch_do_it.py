"""Lets torch do it."""

from torch.nn import functional

DIAGNOSIS = "forbidden"


def causal_attention(q, k, v, scale, window=None):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)
