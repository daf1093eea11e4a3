"""Base of the old best."""

import triton
import triton.language as tl
from minillm.kernels.flash_attention import hide
from minillm.kernels.product import multiply

DIAGNOSIS = None


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    scores = multiply(q, k.T, tl.zeros([q.shape[0], k.shape[0]], tl.float32))
    if MASKED:
        scores = hide(scores, keys, begins, ends)
    new_best = tl.maximum(best, tl.max(scores, axis=1) * scale)
    base = tl.where(new_best == float("-inf"), 0.0, best)
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, axis=1)
    out = multiply(weights.to(v.dtype), v, out * shrink[:, None])
    return new_best, total, out
