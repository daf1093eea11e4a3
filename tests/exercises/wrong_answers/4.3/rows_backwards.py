"""Rows backwards."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = None


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr - row * row_stride + columns, mask=columns < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, axis=0).to(tl.float32))


def row_sum(x):
    rows, width = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_sum_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out
