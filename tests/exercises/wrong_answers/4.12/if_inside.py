"""If inside."""

import triton
import triton.language as tl

DIAGNOSIS = "truth-of-a-block"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    if inside:
        blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
    else:
        blocks = tl.zeros_like(keys)
    return blocks.to(tl.int64), keys % BLOCK_SIZE
