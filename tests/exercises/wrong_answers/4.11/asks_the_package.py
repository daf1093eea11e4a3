"""Asks the package."""

import triton
import triton.language as tl
from minillm.kernels import flash_attention

DIAGNOSIS = "forbidden"


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    return flash_attention.attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED)
