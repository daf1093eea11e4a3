"""As wide as the row."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "arange-not-constexpr"


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, width)
    x = tl.load(x_ptr + row * row_stride + columns)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))


def row_sum(x):
    rows, width = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    row_sum_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out
