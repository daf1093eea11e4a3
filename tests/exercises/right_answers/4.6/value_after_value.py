"""Value after value."""

import torch
import triton
import triton.language as tl


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0)
    block = tl.load(table_ptr + token // BLOCK_SIZE)
    for column in range(width):
        at = (block * BLOCK_SIZE + token % BLOCK_SIZE) * width + column
        tl.store(out_ptr + token * width + column, tl.load(blocks_ptr + at))


def gather(blocks, table, length):
    _, size, width = blocks.shape
    out = torch.empty(length, width, dtype=blocks.dtype, device=blocks.device)
    gather_kernel[(length,)](blocks, table, out, width, BLOCK_SIZE=size, WIDTH=triton.next_power_of_2(width))
    return out
