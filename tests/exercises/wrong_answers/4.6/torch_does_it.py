"""Torch does it."""

import triton
import triton.language as tl

DIAGNOSIS = "no-kernel"


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0)
    block = tl.load(table_ptr + token // BLOCK_SIZE)
    slot = block * BLOCK_SIZE + token % BLOCK_SIZE
    columns = tl.arange(0, WIDTH)
    values = tl.load(blocks_ptr + slot * width + columns, mask=columns < width)
    tl.store(out_ptr + token * width + columns, values, mask=columns < width)


def gather(blocks, table, length):
    return blocks[table.long()].flatten(0, 1)[:length]
