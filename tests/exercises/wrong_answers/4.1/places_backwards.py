"""Places backwards."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = None


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK - tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(out_ptr + at, x + y)


def add(x, y, block=1024):
    out = torch.empty_like(x)
    add_kernel[(len(x) // block,)](x, y, out, BLOCK=block)
    return out
