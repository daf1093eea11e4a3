"""A large finite number below."""

import triton
import triton.language as tl
from minillm.kernels.flash_attention import hide
from minillm.kernels.product import multiply


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    scores = multiply(q, k.T, tl.zeros([q.shape[0], k.shape[0]], tl.float32))
    if MASKED:
        scores = hide(scores, keys, begins, ends)
    scores = scores * scale
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.maximum(new_best, -1e30)
    shrink = tl.exp2(best - base)
    weights = tl.exp2(scores - base[:, None])
    total = total * shrink
    total += tl.sum(weights, axis=1)
    out *= shrink[:, None]
    out = multiply(weights.to(v.dtype), v, out)
    return new_best, total, out
