"""What `flash_attention` cannot do, refused before it is launched. Nothing is read back from a device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from minillm.kernels.paged_decode import check_tables
from minillm.kernels.prefill_plan import Plan, check_lengths

HEAD_SIZES = (64, 80, 96, 128, 256)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_arguments(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, paged: bool) -> None:
    """Shapes, dtypes, devices and strides of q, k and v; ValueError naming the one that is wrong."""
    keys = ["num_blocks", "block_size"] if paged else ["S"]
    if q.dim() != 3 or q.dtype not in DTYPES:
        raise ValueError(f"q is {list(q.shape)} {q.dtype}: expected [T, H, D], one of float32, float16, bfloat16")
    if k.dim() != len(keys) + 2 or k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k is {list(k.shape)}: expected {[*keys, 'H_kv', q.shape[-1]]}")
    if v.dim() != k.dim() or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v is {list(v.shape)}: expected {[*k.shape[:-1], 'D_v']}")
    if k.shape[-2] < 1 or q.shape[1] < 1 or q.shape[1] % k.shape[-2]:
        raise ValueError(f"q has {q.shape[1]} heads and k {k.shape[-2]}: expected a multiple")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.shape[-1] not in HEAD_SIZES:
            raise ValueError(f"{name} has heads of {tensor.shape[-1]} values: expected one of {HEAD_SIZES}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}: expected {q.dtype} on {q.device}, as q")
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} has strides {tensor.stride()}: expected the values of a head side by side")
        if paged and tensor is not q and (0 in tensor.shape or tensor.stride(0) != tensor.shape[1] * tensor.stride(1)):
            raise ValueError(f"{name} is {list(tensor.shape)}, strides {tensor.stride()}: expected blocks, one after "
                             "another")


def check_options(scale: float, causal: bool, window: int | None) -> None:
    if not isinstance(scale, (int, float)) or not 0 < scale < 1e38:  # times log2(e), within float32
        raise ValueError(f"scale is {scale!r}: expected a number above 0 and below 1e38")
    if window is not None and (not isinstance(window, int) or window < 1 or not causal):
        raise ValueError(f"window is {window!r}, causal {causal}: expected None, or a whole number from 1 on with "
                         "causal True")


def check_keys(k: torch.Tensor, query_lens: Sequence[int], key_lens: Sequence[int], tokens: int,
               block_tables: torch.Tensor | None) -> None:
    """Lengths that add up, and room for every key; block tables, if on the CPU, with blocks that exist."""
    check_lengths(query_lens, key_lens, tokens)
    if block_tables is None:
        if sum(key_lens) != len(k):
            raise ValueError(f"key_lens sums to {sum(key_lens)}: expected {len(k)}, the keys of k")
        return
    if block_tables.dim() != 2 or len(block_tables) != len(key_lens) or block_tables.dtype != torch.int32:
        raise ValueError(f"block_tables is {list(block_tables.shape)} {block_tables.dtype}: expected "
                         f"[{len(key_lens)}, pages] int32")
    room = block_tables.shape[1] * k.shape[1]
    if max(key_lens, default=0) > room:
        raise ValueError(f"key_lens has {max(key_lens)}: expected at most {room}, the slots of "
                         f"{block_tables.shape[1]} pages")
    if block_tables.stride(-1) != 1:
        raise ValueError(f"block_tables has strides {block_tables.stride()}: expected the pages of a row side by side")
    if block_tables.device.type == "cpu":
        check_tables(block_tables.tolist(), key_lens, len(k), k.shape[1])
    elif block_tables.device != k.device:
        raise ValueError(f"block_tables is on {block_tables.device}: expected {k.device}, as k, or the CPU")


def check_plan(plan: Plan, query_lens: Sequence[int], key_lens: Sequence[int], device: torch.device) -> None:
    if plan.query_lens != tuple(query_lens) or plan.key_lens != tuple(key_lens):
        raise ValueError(f"plan is for query_lens {list(plan.query_lens)} and key_lens {list(plan.key_lens)}: expected "
                         f"{list(query_lens)} and {list(key_lens)}")
    if plan.tiles.device != device:
        raise ValueError(f"plan is on {plan.tiles.device}: expected {device}, as q")
