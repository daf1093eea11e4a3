"""One pointer."""

import triton
import triton.language as tl

DIAGNOSIS = "one-address"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    blocks = tl.load(table_ptr, mask=inside, other=0)
    return blocks.to(tl.int64), keys % BLOCK_SIZE
