"""The first entry for the rest."""

import triton
import triton.language as tl


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr + tl.where(inside, keys // BLOCK_SIZE, 0))
    return blocks.to(tl.int64), (keys % BLOCK_SIZE).to(tl.int64)
