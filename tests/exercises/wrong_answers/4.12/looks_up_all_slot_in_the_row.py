"""Looks up all slot in the row."""

import triton
import triton.language as tl

DIAGNOSIS = "slot-is-key"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE)
    return blocks.to(tl.int64), keys
