"""What `paged_decode` cannot do, refused before it is launched. Looks at shapes only: nothing is read from a device."""

from __future__ import annotations

import torch
import triton

HEAD_SIZES = (64, 80, 96, 128, 256)
MAX_OUTPUT = 8192  # values that a program keeps in its registers: a row of output for each query head of the group
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CODES = (torch.int8, torch.uint8)  # INT8, and the bytes of FP8


def check_arguments(q: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor, block_tables: torch.Tensor,
                    context_lens: torch.Tensor) -> None:
    """Shapes, dtypes, devices and strides of `paged_decode`'s tensors; ValueError naming the one that is wrong."""
    if q.dim() != 3 or q.dtype not in DTYPES:
        raise ValueError(f"q is {list(q.shape)} {q.dtype}: expected [B, H, D], one of float32, float16, bfloat16")
    if k_blocks.dim() != 4 or k_blocks.shape[3] != q.shape[2]:
        raise ValueError(f"k_blocks is {list(k_blocks.shape)}: expected [num_blocks, block_size, H_kv, {q.shape[2]}]")
    if v_blocks.dim() != 4 or v_blocks.shape[:3] != k_blocks.shape[:3]:
        raise ValueError(f"v_blocks is {list(v_blocks.shape)}: expected {[*k_blocks.shape[:3], 'D_v']}")
    for name, tensor in (("k_blocks", k_blocks), ("v_blocks", v_blocks)):
        if tensor.shape[3] not in HEAD_SIZES:
            raise ValueError(f"{name} has heads of {tensor.shape[3]} values: expected one of {HEAD_SIZES}")
        if tensor.dtype != k_blocks.dtype or tensor.dtype not in (q.dtype, *CODES):
            raise ValueError(f"{name} is {tensor.dtype}: expected q's {q.dtype}, int8 or uint8, the same in K and V")
    check_heads(q.shape[1], k_blocks.shape[2], k_blocks.shape[1], v_blocks.shape[3])
    for name, tensor, shape in (("block_tables", block_tables, [len(q), "pages"]),
                                ("context_lens", context_lens, [len(q)])):
        if tensor.dim() != len(shape) or len(tensor) != len(q) or tensor.dtype != torch.int32:
            raise ValueError(f"{name} is {list(tensor.shape)} {tensor.dtype}: expected {shape} int32")
    for name, tensor in (("q", q), ("k_blocks", k_blocks), ("v_blocks", v_blocks), ("block_tables", block_tables),
                         ("context_lens", context_lens)):
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}: expected {q.device}, as q")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}: expected it contiguous")


def check_heads(heads: int, kv_heads: int, block_size: int, value_dim: int) -> None:
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k_blocks {kv_heads}: expected a multiple")
    most = largest_group(value_dim)
    if heads // kv_heads > most:
        raise ValueError(f"q has {heads // kv_heads} heads on each of k_blocks': expected at most {most}, V having "
                         f"{value_dim} values")
    if block_size < 1:
        raise ValueError("k_blocks has blocks of 0 slots: expected at least 1")


def largest_group(value_dim: int) -> int:
    """How many query heads may share a K/V head whose V has value_dim values."""
    return MAX_OUTPUT // triton.next_power_of_2(value_dim)


def check_scales(k_blocks: torch.Tensor, k_scales: torch.Tensor | None, v_scales: torch.Tensor | None) -> None:
    """Codes have scales [num_blocks, 1, H_kv, 1], floating and contiguous; values have none."""
    shape = [k_blocks.shape[0], 1, k_blocks.shape[2], 1]
    for name, scales in (("k_scales", k_scales), ("v_scales", v_scales)):
        if (scales is not None) != (k_blocks.dtype in CODES):
            raise ValueError(f"{name} is {'None' if scales is None else 'given'} where k_blocks is {k_blocks.dtype}: "
                             "expected scales with codes, int8 or uint8, and only there")
        if scales is None:
            continue
        if list(scales.shape) != shape or scales.dtype not in DTYPES:
            raise ValueError(f"{name} is {list(scales.shape)} {scales.dtype}: expected {shape}, floating")
        if scales.device != k_blocks.device or not scales.is_contiguous():
            raise ValueError(f"{name} is on {scales.device}, strides {scales.stride()}: expected {k_blocks.device}, "
                             "contiguous")
