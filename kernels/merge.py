"""One attention result out of several, each over its own share of the keys.

A share yields its output O_i, normalised over its own keys, and L_i = log Σ e^score, its log-sum-exp. Over all keys
L = log Σ e^{L_i} and O = Σ e^{L_i − L} O_i: exact, and the same in any order and grouping. A share without keys has
L_i = −∞, weighs 0 and changes nothing. FlashDecoding (Dao et al. 2023) splits the keys of one query so.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case

MAX_SPLITS = 256
TILE_VALUES = 8192  # of a program's tile [splits, columns]: 64 registers a thread at 4 warps
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def merge_reference(parts: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(O [N, D], L [N]) from parts [N, S, D] and lse [N, S], natural logarithms, of one dtype."""
    total = torch.logsumexp(lse, dim=1)  # [N], -inf where all shares are empty
    weights = torch.exp(lse - total.masked_fill(total == float("-inf"), 0.0)[:, None])  # [N, S]: -inf - -inf is NaN
    parts = parts.masked_fill((lse == float("-inf"))[:, :, None], 0.0)  # 0 · NaN is NaN
    return (weights[:, :, None] * parts).sum(1), total


@triton.jit
def merge_kernel(parts_ptr, lse_ptr, out_ptr, total_ptr, splits, D: tl.constexpr, SPLITS: tl.constexpr,
                 COLUMNS: tl.constexpr):
    """One program for each row and run of COLUMNS values. SPLITS: `splits` rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)  # 64 bits: N·S·D may exceed 2**31
    share = tl.arange(0, SPLITS)
    lse = tl.load(lse_ptr + row * splits + share, mask=share < splits, other=float("-inf"))
    best = tl.max(lse, axis=0)
    weights = tl.exp(lse - tl.where(best == float("-inf"), 0.0, best))  # every share empty: -inf - -inf would be NaN
    total = tl.sum(weights, axis=0)
    total = tl.where(total == 0.0, 1.0, total)  # without keys: 0 and best's -inf
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = (row * splits + share)[:, None] * D + columns[None, :]
    # an empty share's values are not read at all: 0 · NaN is NaN
    read = (lse != float("-inf"))[:, None] & (columns < D)[None, :]
    parts = tl.load(parts_ptr + at, mask=read, other=0.0)  # [SPLITS, COLUMNS]
    merged = tl.sum(weights[:, None] * parts, axis=0) / total
    tl.store(out_ptr + row * D + columns, merged.to(out_ptr.dtype.element_ty), mask=columns < D)
    tl.store(total_ptr + row, best + tl.log(total))  # every program of a row stores the same number


def merge_splits(parts: torch.Tensor, lse: torch.Tensor,
                 dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's launcher: (out [N, D] in dtype, total [N] float32) from parts [N, S, D] and lse [N, S], float32.

    Waits for nothing, so it may stand in a CUDA graph. Raises ValueError for other shapes, dtypes, devices or strides,
    and for S beyond MAX_SPLITS.
    """
    if parts.dim() != 3 or not 1 <= parts.shape[1] <= MAX_SPLITS or not parts.shape[2]:
        raise ValueError(f"parts is {list(parts.shape)}: expected [N, S, D], S from 1 to {MAX_SPLITS}")
    if lse.shape != parts.shape[:2]:
        raise ValueError(f"lse is {list(lse.shape)}: expected {list(parts.shape[:2])}")
    for name, tensor in (("parts", parts), ("lse", lse)):
        if tensor.dtype != torch.float32 or tensor.device != parts.device or not tensor.is_contiguous():
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}, strides {list(tensor.stride())}: expected "
                             f"float32 on {parts.device}, contiguous")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}: expected one of float32, float16, bfloat16")
    rows, splits, dim = parts.shape
    out, total = parts.new_empty(rows, dim, dtype=dtype), lse.new_empty(rows)
    if rows:
        columns = tile_columns(splits, dim)
        merge_kernel[(rows, triton.cdiv(dim, columns))](
            parts, lse, out, total, splits, D=dim, SPLITS=triton.next_power_of_2(splits), COLUMNS=columns, num_warps=4)
    return out, total


def tile_columns(splits: int, dim: int) -> int:
    """Values of each share that a program merges: the more shares, the fewer, so that its tile stays in registers."""
    return min(triton.next_power_of_2(dim), TILE_VALUES // triton.next_power_of_2(splits))


def cases() -> list[Case]:
    """Few splits, and the most of the widest head."""
    pointers = {"parts_ptr": "*fp32", "lse_ptr": "*fp32", "out_ptr": "*bf16", "total_ptr": "*fp32"}
    return [Case(f"merge {splits} splits d{dim} bf16", merge_kernel, {**pointers, "splits": "i32"},
                 {"D": dim, "SPLITS": triton.next_power_of_2(splits), "COLUMNS": tile_columns(splits, dim)}, 4, 3,
                 tensor_core=False)
            for splits, dim in ((7, 128), (MAX_SPLITS, 256))]
