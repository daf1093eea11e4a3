"""Pointers of entries."""

import triton
import triton.language as tl


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    slots = keys % BLOCK_SIZE
    table_ptr += (keys - slots) // BLOCK_SIZE
    blocks = tl.load(table_ptr, mask=inside)
    return tl.cast(blocks, tl.int64), slots
