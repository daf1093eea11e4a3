"""Where after loading."""

import triton
import triton.language as tl

DIAGNOSIS = "no-mask"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.where(inside, tl.load(table_ptr + keys // BLOCK_SIZE), 0)
    return blocks.to(tl.int64), keys % BLOCK_SIZE
