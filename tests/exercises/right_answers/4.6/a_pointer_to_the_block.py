"""A pointer to the block."""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0)
    page = token // BLOCK_SIZE
    block = tl.load(table_ptr + page)
    begin = blocks_ptr + block.to(tl.int64) * BLOCK_SIZE * width
    place = token - page * BLOCK_SIZE
    columns = tl.arange(0, WIDTH)
    inside = columns < width
    values = tl.load(begin + place * width + columns, mask=inside, other=0.0)
    tl.store(out_ptr + token * width + columns, values, mask=inside)


def gather(blocks, table, length):
    _, size, width = blocks.shape
    out = torch.empty(length, width, dtype=blocks.dtype, device=blocks.device)
    gather_kernel[(length,)](blocks, table, out, width, BLOCK_SIZE=size, WIDTH=triton.next_power_of_2(width))
    return out
