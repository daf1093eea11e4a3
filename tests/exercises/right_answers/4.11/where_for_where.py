"""Where for where."""

import triton
import triton.language as tl
from minillm.kernels.product import multiply


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    scores = tl.dot(q.to(tl.float32), tl.trans(k).to(tl.float32), input_precision="ieee") * scale
    if MASKED:
        seen = keys[None, :] < ends[:, None]
        if begins is not None:
            seen = seen & (keys[None, :] >= begins[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    empty = new_best == float("-inf")
    shrink = tl.where(empty, 1.0, tl.exp2(best - new_best))
    weights = tl.where(empty[:, None], 0.0, tl.exp2(scores - new_best[:, None]))
    out = out * shrink[:, None] + multiply(weights.to(v.dtype), v, tl.zeros_like(out))
    return new_best, total * shrink + tl.sum(weights, axis=1), out
