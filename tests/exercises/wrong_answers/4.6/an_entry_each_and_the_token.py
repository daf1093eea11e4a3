"""An entry each and the token."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = "token-in-the-table"


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    token = tl.program_id(0)
    block = tl.load(table_ptr + token)
    slot = block * BLOCK_SIZE + token
    columns = tl.arange(0, WIDTH)
    values = tl.load(blocks_ptr + slot * width + columns, mask=columns < width)
    tl.store(out_ptr + token * width + columns, values, mask=columns < width)


def gather(blocks, table, length):
    _, size, width = blocks.shape
    out = torch.empty(length, width, dtype=blocks.dtype, device=blocks.device)
    gather_kernel[(length,)](blocks, table, out, width, BLOCK_SIZE=size, WIDTH=triton.next_power_of_2(width))
    return out
