"""Asks the package."""

import triton
import triton.language as tl
from minillm.kernels import paged_decode

DIAGNOSIS = "forbidden"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    return paged_decode.find_keys(table_ptr, keys, inside, BLOCK_SIZE)
