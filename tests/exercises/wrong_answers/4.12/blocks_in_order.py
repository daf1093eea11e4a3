"""Blocks in order."""

import triton
import triton.language as tl

DIAGNOSIS = "table-not-used"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    return (keys // BLOCK_SIZE).to(tl.int64), keys % BLOCK_SIZE
