"""tl.dot, which the interpreter gets wrong for bfloat16, in place of multiply."""

import triton
import triton.language as tl
from minillm.kernels.flash_attention import hide

DIAGNOSIS = "interpreter-dot"


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    scores = tl.dot(q, tl.trans(k))
    if MASKED:
        scores = hide(scores, keys, begins, ends)
    new_best = tl.maximum(best, tl.max(scores, axis=1) * scale)
    base = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, axis=1)
    out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return new_best, total, out
