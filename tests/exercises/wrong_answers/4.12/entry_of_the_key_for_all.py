"""Entry of the key for all."""

import triton
import triton.language as tl

DIAGNOSIS = "key-in-the-table"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr + keys)
    return blocks.to(tl.int64), keys % BLOCK_SIZE
