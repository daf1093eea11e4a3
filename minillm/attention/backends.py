"""Who computes attention. A cache hands over tensors; the backend is an argument, never a global.

Every backend has the signature of `reference.ragged_attention` and agrees with it within rounding.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from minillm.attention import reference


def _reference(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
               scale: float, window: int | None) -> torch.Tensor:
    return reference.ragged_attention(q, keys, values, query_lens, scale, window)


def _sdpa(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
          scale: float, window: int | None) -> torch.Tensor:
    """PyTorch's fused attention, one call a row."""
    outputs = []
    start = 0
    heads, kv_heads = q.shape[1], keys[0].shape[1]
    for k, v, length in zip(keys, values, query_lens):
        row = q[start : start + length]  # [S_q, H, D]
        start += length
        k, v = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, H_kv, S_k, D]
        keys_seen = k.shape[2]
        if length == 1:
            # A decode row: the heads that share a K/V head attend to it as if they were several queries, so that K and
            # V are read once for all of them. A single query sees every key, unless a window hides the early ones.
            grouped = row.view(1, kv_heads, heads // kv_heads, -1)  # [1, H_kv, H / H_kv, D]
            mask = None if window is None else reference.causal_mask(1, keys_seen, window, q.device)  # [1, S_k]
            out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale)  # [1, H_kv, H / H_kv, D_v]
            outputs.append(out.reshape(1, heads, -1))  # [1, H, D_v]
            continue
        # is_causal aligns top-left, so it is right only when there are as many queries as keys
        square = length == keys_seen and (window is None or keys_seen <= window)
        mask = None if square else reference.causal_mask(length, keys_seen, window, q.device)  # [S_q, S_k]
        row = row.transpose(0, 1)[None].contiguous()  # [1, H, S_q, D]: read once for each tile of keys
        out = scaled_dot_product_attention(row, k, v, attn_mask=mask, is_causal=square, scale=scale,
                                           enable_gqa=heads != kv_heads)  # [1, H, S_q, D_v]
        outputs.append(out[0].transpose(0, 1))  # [S_q, H, D_v]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)  # [T, H, D_v]


BACKENDS = {"reference": _reference, "sdpa": _sdpa}


def check_backend(name: str) -> str:
    """`name` if it is a backend; ValueError otherwise."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(f"attention backend is {name!r}: expected one of {', '.join(BACKENDS)}")
    return name


def attend(
    backend: str,
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    query_lens: list[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Ragged causal attention by the named backend; shapes as `reference.ragged_attention`."""
    return BACKENDS[backend](q, keys, values, query_lens, scale, window)
