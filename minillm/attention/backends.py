"""Who computes attention. A cache hands over tensors; the backend is an argument, never a global.

Every backend has the signature of `reference.ragged_attention`, and the step's masks, and agrees with it within
rounding.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from minillm.attention import flash, reference, triton_backend

Masks = dict[tuple, torch.Tensor]
MASK_ELEMENTS = 2**24  # 64 MB in float32: the largest mask that is laid out for every head of a group


def _reference(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
               scale: float, window: int | None, masks: Masks) -> torch.Tensor:
    return reference.ragged_attention(q, keys, values, query_lens, scale, window)


def _sdpa(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
          scale: float, window: int | None, masks: Masks) -> torch.Tensor:
    """PyTorch's fused attention, one call a row."""
    outputs = []
    group = q.shape[1] // keys[0].shape[1]
    for row, k, v in zip(q.split(query_lens), keys, values):  # [S_q, H, D], [S_k, H_kv, D]
        length, keys_seen = len(row), len(k)
        if length < keys_seen and length * group * keys_seen <= MASK_ELEMENTS:
            outputs.append(_grouped(row, k, v, scale, _group_mask(row, keys_seen, group, window, masks)))
        else:
            outputs.append(_by_head(row, k, v, scale, window))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)  # [T, H, D_v]


def _grouped(row: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
             mask: torch.Tensor | None) -> torch.Tensor:
    """New tokens behind cached ones: the heads that share a K/V head attend to it as if they were further queries, so
    that K and V are read once for all of them. mask [S_q * H / H_kv, S_k]."""
    queries = row.unflatten(1, (k.shape[1], -1)).transpose(0, 1)  # [H_kv, S_q, H / H_kv, D]
    size = queries.shape[1:3]
    out = functional.scaled_dot_product_attention(
        queries.flatten(1, 2)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask,
        scale=scale)  # [1, H_kv, S_q * H / H_kv, D_v]
    return out[0].unflatten(1, size).transpose(0, 1).flatten(1, 2)  # [S_q, H, D_v]


def _group_mask(row: torch.Tensor, keys: int, group: int, window: int | None, masks: Masks) -> torch.Tensor | None:
    """What is added to the scores, [S_q * group, S_k]: 0 or -inf. None for one query that sees every key.

    The layers of a step share it: built anew in each, it costs more time than the grouping saves.
    """
    if len(row) == 1 and window is None:
        return None
    key = (len(row), keys, group, window)
    if key not in masks:
        hidden = ~reference.causal_mask(len(row), keys, window, row.device)  # [S_q, S_k]
        mask = torch.zeros_like(hidden, dtype=row.dtype).masked_fill_(hidden, float("-inf"))
        masks[key] = mask.repeat_interleave(group, dim=0)
    return masks[key]


def _by_head(row: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """A whole text, or a chunk whose mask would be too large to lay out for every head."""
    (length, heads, _), (keys, kv_heads, _) = row.shape, k.shape
    # is_causal aligns top-left, so it is right only when there are as many queries as keys
    square = length == keys and (window is None or keys <= window)
    mask = None if square else reference.causal_mask(length, keys, window, row.device)  # [S_q, S_k]
    row = row.transpose(0, 1)[None].contiguous()  # [1, H, S_q, D]: read once for each tile of keys
    # by module, not imported by name: a check that forbids it for a while may be what imports this file
    out = functional.scaled_dot_product_attention(
        row, k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask, is_causal=square, scale=scale,
        enable_gqa=heads != kv_heads)
    return out[0].transpose(0, 1)  # [1, H, S_q, D_v] -> [S_q, H, D_v]


BACKENDS = {"reference": _reference, "sdpa": _sdpa, "tiled": flash.ragged_attention,
            "triton": triton_backend.ragged_attention}


def check_backend(name: str) -> str:
    """`name` if it is a backend; ValueError otherwise."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise ValueError(f"attention backend is {name!r}: expected one of {', '.join(BACKENDS)}")
    return name


def attend(backend: str, q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
           scale: float, window: int | None = None, masks: Masks | None = None) -> torch.Tensor:
    """Ragged causal attention by the named backend; shapes as `reference.ragged_attention`.

    masks: an empty dict at the beginning of a step and the same one in each of its layers, for what they share.
    """
    return BACKENDS[backend](q, keys, values, query_lens, scale, window, {} if masks is None else masks)
