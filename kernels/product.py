"""The matrix product of the attention kernels, which Triton's interpreter can also do in bfloat16."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def multiply(a, b, acc):
    """acc + a @ b, summed in float32; a and b of one dtype, which they keep on a GPU.

    The interpreter holds bfloat16 as integers and would multiply those, so there both are made float32 first: the
    same numbers (Triton issue 11584).
    """
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
