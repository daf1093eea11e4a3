"""Torch does it."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "no-kernel"


@triton.jit
def gaps_kernel(times_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    now = tl.load(times_ptr + at, mask=inside)
    before = tl.load(times_ptr + at - 1, mask=inside & (at > 0), other=0.0)
    tl.store(out_ptr + at, now - before, mask=inside)


def gaps(times, block=1024):
    return torch.diff(times, prepend=times.new_zeros(1))
