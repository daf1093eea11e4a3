"""Zeros masked in the powers."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "padding-is-the-largest"


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=0.0)
    powers = tl.exp(x - tl.max(x, axis=0)) * inside
    tl.store(out_ptr + row * width + columns, powers / tl.sum(powers, axis=0), mask=inside)


def softmax(x):
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    softmax_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out
