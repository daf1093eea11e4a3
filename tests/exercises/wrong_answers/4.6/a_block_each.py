"""A block each."""

import torch
import triton
import triton.language as tl

DIAGNOSIS = None


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    page = tl.program_id(0)
    block = tl.load(table_ptr + page)
    at = tl.arange(0, BLOCK_SIZE)[:, None] * width + tl.arange(0, WIDTH)[None, :]
    tl.store(out_ptr + page * BLOCK_SIZE * width + at, tl.load(blocks_ptr + block * BLOCK_SIZE * width + at))


def gather(blocks, table, length):
    _, size, width = blocks.shape
    out = torch.empty(length, width, dtype=blocks.dtype, device=blocks.device)
    gather_kernel[(length,)](blocks, table, out, width, BLOCK_SIZE=size, WIDTH=triton.next_power_of_2(width))
    return out
