"""A block before."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "a-block-before"


@triton.jit
def gaps_kernel(times_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    now = tl.load(times_ptr + at, mask=inside)
    before = tl.load(times_ptr + at - BLOCK, mask=inside & (at > 0), other=0.0)
    tl.store(out_ptr + at, now - before, mask=inside)


def gaps(times, block=1024):
    out = torch.empty_like(times)
    gaps_kernel[(triton.cdiv(len(times), block),)](times, out, len(times), BLOCK=block)
    return out
