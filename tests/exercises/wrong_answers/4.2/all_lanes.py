"""All lanes."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "no-mask"


@triton.jit
def gaps_kernel(times_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    now = tl.load(times_ptr + at)
    before = tl.load(times_ptr + at - 1, mask=at > 0, other=0.0)
    tl.store(out_ptr + at, now - before)


def gaps(times, block=1024):
    out = torch.empty_like(times)
    gaps_kernel[(triton.cdiv(len(times), block),)](times, out, len(times), BLOCK=block)
    return out
