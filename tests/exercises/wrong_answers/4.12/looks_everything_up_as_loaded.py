"""Looks everything up as loaded."""

import triton
import triton.language as tl

DIAGNOSIS = "no-mask"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
    return blocks, keys % BLOCK_SIZE
