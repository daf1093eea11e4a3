"""Slot then block."""

import triton
import triton.language as tl

DIAGNOSIS = "order-swapped"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=inside, other=0)
    return keys % BLOCK_SIZE, blocks.to(tl.int64)
