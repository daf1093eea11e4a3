"""Torch does it."""

import triton
import triton.language as tl

DIAGNOSIS = "no-kernel"


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * row_stride + columns, mask=columns < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))


def row_sum(x):
    return x.float().sum(dim=1)
