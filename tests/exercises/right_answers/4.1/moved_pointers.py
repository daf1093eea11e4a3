"""Moved pointers."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * BLOCK
    lanes = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + begin + lanes)
    y = tl.load(y_ptr + begin + lanes)
    tl.store(out_ptr + begin + lanes, x + y)


def add(x, y, block=1024):
    out = torch.empty_like(x)
    add_kernel[(len(x) // block,)](x, y, out, BLOCK=block)
    return out
