"""Residual add and RMSNorm in one pass: the residual stream is read once and written once.

Apart, the add writes [T, N] and the norm reads it back: 5·T·N values moved. Fused, x and the residual are read, their
sum and its norm are written: 4·T·N. Arithmetic is negligible, so bytes are the cost.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case

WIDEST = 16384  # values of a row; one of 32,768 in float32 spills, for a program's threads hold it in registers


def add_rms_norm_reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
                           eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(RMSNorm(x + residual) · weight, x + residual), squares averaged in float32 or wider; [T, N], weight [N]."""
    total = x + residual
    wide = total if total.dtype == torch.float64 else total.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype), total


@triton.jit
def add_rms_norm_kernel(x_ptr, residual_ptr, weight_ptr, normed_ptr, total_ptr, width, eps, BLOCK: tl.constexpr):
    """One program for each token: its whole row of `width` values fits in one block of BLOCK, a power of two."""
    row = tl.program_id(0).to(tl.int64)  # 64 bits: T·N may exceed 2**31
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    at = row * width + columns
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    residual = tl.load(residual_ptr + at, mask=inside, other=0.0)
    # summed in float32, then rounded to the stream's dtype, as the unfused add rounds it
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
    tl.store(total_ptr + at, total, mask=inside)
    wide = total.to(tl.float32)
    # columns beyond the row hold 0 and add nothing to the sum; the mean divides by the true width
    mean_square = tl.sum(wide * wide, axis=0) / width
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    normed = wide * tl.rsqrt(mean_square + eps) * weight
    tl.store(normed_ptr + at, normed.to(x.dtype), mask=inside)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
                 eps: float = 1e-5) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's launcher; see `add_rms_norm_reference` for what it computes.

    x, residual [T, N] contiguous, of one dtype (float32, float16, bfloat16); weight [N]. Returns new tensors.
    Raises ValueError for other shapes, dtypes or strides, or rows of more than 16,384 values.
    """
    if x.dim() != 2 or residual.shape != x.shape:
        raise ValueError(f"x is {list(x.shape)} and residual {list(residual.shape)}: expected both [T, N]")
    if weight.shape != x.shape[1:]:
        raise ValueError(f"weight is {list(weight.shape)}: expected [{x.shape[1]}]")
    if x.dtype != residual.dtype or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"x is {x.dtype} and residual {residual.dtype}: expected one of float32, float16, bfloat16 "
                         "for both")
    if weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"weight is {weight.dtype}: expected float32, float16 or bfloat16")
    for name, tensor in (("x", x), ("residual", residual), ("weight", weight)):
        if tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device}: expected {x.device}, as x")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}: expected its values one after another")
    tokens, width = x.shape
    if not 1 <= width <= WIDEST:
        raise ValueError(f"rows have {width} values: expected 1 to {WIDEST}")
    normed, total = torch.empty_like(x), torch.empty_like(x)
    if tokens:
        block = triton.next_power_of_2(width)
        add_rms_norm_kernel[(tokens,)](x, residual, weight, normed, total, width, eps, BLOCK=block,
                                       num_warps=warps(block))
    return normed, total


def warps(block: int) -> int:
    """Warps for a row of `block` values: 8 values a thread, in 16 bits one load of 16 bytes from each input.

    From 8,192 values on there are more a thread: 16 warps, of 64 lanes on AMD, are as many as a block may have.
    """
    return min(16, max(1, block // 256))


def cases() -> list[Case]:
    """Rows of SmolLM2-135M (576), of an 8B model (4,096), of a 70B one (8,192), and the widest."""
    made = []
    for width, dtype in ((576, "bf16"), (4096, "bf16"), (8192, "bf16"), (WIDEST, "fp32")):
        pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "normed_ptr", "total_ptr"), f"*{dtype}")
        block = triton.next_power_of_2(width)
        made.append(Case(f"rms_norm {width} {dtype}", add_rms_norm_kernel,
                         {**pointers, "width": "i32:16", "eps": "fp32"}, {"BLOCK": block}, warps(block), 1, False))
    return made
