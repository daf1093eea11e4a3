"""What is left over."""

import triton
import triton.language as tl


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    page = keys // BLOCK_SIZE
    slot = keys - page * BLOCK_SIZE
    return tl.load(table_ptr + page, mask=inside, other=0).to(tl.int64), slot
