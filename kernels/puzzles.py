"""Six small kernels, a way into Triton. Each has its specification in torch above it, which says what it computes.

A kernel is written for one program. A launch starts many, numbered by `tl.program_id`; each works on whole blocks of
elements, whose addresses are a pointer plus a block of offsets. A mask says which of them there are.

The six go from there to what attention needs: rows, a softmax, tiles of a product, blocks found through a table. They
are for reading; torch's own are as fast or faster. Checks take small blocks, so that one can look at each element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case

OFFSETS = 2**31  # elements that a 32-bit offset reaches; program_id and arange give 32 bits


def check_launch(block: int, **tensors: torch.Tensor) -> None:
    """Raise ValueError unless `block` is a power of two and the tensors are contiguous, alike, in float32 or float16.

    No bfloat16: Triton's interpreter keeps it as integers, and adds those.
    """
    if block < 1 or block & (block - 1):
        raise ValueError(f"block is {block}: expected a power of two")
    (first, measure), *_ = tensors.items()
    if measure.dtype not in (torch.float32, torch.float16):
        raise ValueError(f"{first} is {measure.dtype}: expected torch.float32 or torch.float16")
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {list(tensor.stride())}: expected a contiguous tensor")
        if (tensor.dtype, tensor.device) != (measure.dtype, measure.device):
            raise ValueError(f"{name} is {tensor.dtype} on {tensor.device}: expected {measure.dtype} on "
                             f"{measure.device}, as {first}")
        if tensor.numel() > OFFSETS:
            raise ValueError(f"{name} has {tensor.numel():,} elements: expected at most {OFFSETS:,}")


def check_rows(x: torch.Tensor) -> None:
    """Raise ValueError unless x is [rows, 1 to 65,536] with the elements of a row one after another."""
    if x.dim() != 2 or not 1 <= x.shape[1] <= 65536:
        raise ValueError(f"x is {list(x.shape)}: expected [rows, 1 to 65536 columns]")
    if x.stride(1) != 1:
        raise ValueError(f"x has strides {list(x.stride())}: expected the elements of a row one after another")
    if len(x) * x.stride(0) > OFFSETS:
        raise ValueError(f"x spans {len(x) * x.stride(0):,} elements: expected at most {OFFSETS:,}")


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y, element by element."""
    return x + y


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i]. Program 0 does elements 0 to BLOCK - 1, program 1 the next BLOCK, and so on: all full."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] places of this program's elements
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(out_ptr + at, x + y)


def add(x: torch.Tensor, y: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """Launch add_kernel: see `add_reference`. x, y [N] contiguous, N a multiple of `block`; ValueError otherwise."""
    check_launch(block, x=x, y=y)
    if x.dim() != 1 or x.shape != y.shape or len(x) % block:
        raise ValueError(f"x is {list(x.shape)}, y {list(y.shape)}: expected both [N], N a multiple of {block}")
    out = torch.empty_like(x)
    programs = len(x) // block
    if programs:
        add_kernel[(programs,)](x, y, out, BLOCK=block)
    return out


def gaps_reference(times: torch.Tensor) -> torch.Tensor:
    """What lies between neighbours, the first counted from 0: the times of tokens become TTFT and ITLs."""
    return times - torch.cat([times.new_zeros(1), times])[:-1]


@triton.jit
def gaps_kernel(times_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """out[i] = times[i] - times[i - 1], and out[0] = times[0]. BLOCK elements a program; there are only `count`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    inside = at < count
    now = tl.load(times_ptr + at, mask=inside)
    before = tl.load(times_ptr + at - 1, mask=inside & (at > 0), other=0.0)
    tl.store(out_ptr + at, now - before, mask=inside)


def gaps(times: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """Launch gaps_kernel: see `gaps_reference`. times [N] contiguous, any N; ValueError otherwise."""
    check_launch(block, times=times)
    if times.dim() != 1:
        raise ValueError(f"times is {list(times.shape)}: expected [N]")
    out = torch.empty_like(times)
    programs = triton.cdiv(len(times), block)  # rounded up: the last one may have less to do
    if programs:
        gaps_kernel[(programs,)](times, out, len(times), BLOCK=block)
    return out


def row_sum_reference(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row, in float32: [M, N] -> [M]."""
    return x.float().sum(dim=1)


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    """out[i] = the sum of row i in float32, by program i. The row begins row_stride elements after the one before it.

    It has `width` elements, and fits into one block of BLOCK, a power of two.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)  # [BLOCK]
    x = tl.load(x_ptr + row * row_stride + columns, mask=columns < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """Launch row_sum_kernel: see `row_sum_reference`. x [M, N], rows maybe apart, a floating dtype; ValueError else."""
    check_rows(x)
    rows, width = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        row_sum_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row: e^x over the sum of all e^x, both less the row's largest value, which changes nothing."""
    powers = torch.exp(x - x.amax(dim=1, keepdim=True))  # [M, N], at most 1: no overflow
    return powers / powers.sum(dim=1, keepdim=True)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    """Row i of out = softmax of row i of x, by program i. Rows of x are row_stride apart, those of out `width`.

    A row fits into one block of BLOCK, a power of two. It is read once.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)  # [BLOCK]
    inside = columns < width
    x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=float("-inf"))  # e^-inf = 0 adds nothing
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * width + columns, powers / tl.sum(powers, axis=0), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Launch softmax_kernel: see `softmax_reference`. x [M, N] in float32, rows maybe apart; ValueError otherwise."""
    check_rows(x)
    if x.dtype != torch.float32:
        raise ValueError(f"x is {x.dtype}: expected torch.float32")
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows:
        softmax_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out


def matmul_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b, summed in float32: [M, K] times [K, N] -> [M, N] in a's dtype."""
    return (a.float() @ b.float()).to(a.dtype)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, M, N, K, BLOCK: tl.constexpr):
    """Program (i, j) makes tile (i, j) of out = a @ b: BLOCK rows and columns, summed in float32, tile by tile along K.

    a [M, K], b [K, N] and out [M, N] lie in memory row after row.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] of a and out
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] of b and out
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)  # the sum so far: wide, whatever a is
    # exercise 4.5: blank
    for start in range(0, K, BLOCK):
        inner = start + tl.arange(0, BLOCK)  # [BLOCK] columns of a, rows of b
        a = tl.load(a_ptr + rows[:, None] * K + inner[None, :],
                    mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + columns[None, :],
                    mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")  # no rounding of float32 to tf32
    # exercise 4.5: end
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], acc.to(out_ptr.dtype.element_ty),
             mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a: torch.Tensor, b: torch.Tensor, block: int = 32) -> torch.Tensor:
    """Launch matmul_kernel: see `matmul_reference`. a [M, K], b [K, N] contiguous; ValueError otherwise.

    block: at least 16 on a GPU, the smallest side of a tile that tl.dot takes.
    """
    check_launch(block, a=a, b=b)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {list(a.shape)}, b {list(b.shape)}: expected [M, K] and [K, N]")
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    if m and n:
        matmul_kernel[(triton.cdiv(m, block), triton.cdiv(n, block))](a, b, out, m, n, k, BLOCK=block)
    return out


def gather_reference(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """A sequence's tokens out of the blocks in its table: [num_blocks, size, width], [pages] -> [length, width]."""
    return blocks[table.long()].flatten(0, 1)[:length]


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Row t of out = token t of the sequence, by program t. It lies in block table[t // BLOCK_SIZE].

    blocks [num_blocks, BLOCK_SIZE, width]: block after block in memory, in it token after token of `width` values.
    These fit into WIDTH, a power of two.
    """
    token = tl.program_id(0)
    block = tl.load(table_ptr + token // BLOCK_SIZE).to(tl.int64)  # 64 bits: a cache may hold more than 2**31 values
    slot = block * BLOCK_SIZE + token % BLOCK_SIZE
    columns = tl.arange(0, WIDTH)  # [WIDTH]
    values = tl.load(blocks_ptr + slot * width + columns, mask=columns < width)
    tl.store(out_ptr + token * width + columns, values, mask=columns < width)


def gather(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """Launch gather_kernel: see `gather_reference`. blocks contiguous; table [pages] of int32, enough for `length`.

    Raises ValueError for other shapes, and for a block that there is not (which is looked up on the host).
    """
    if blocks.dim() != 3 or 0 in blocks.shape or not blocks.is_contiguous():
        raise ValueError(f"blocks is {list(blocks.shape)}: expected [num_blocks, block_size, width], contiguous")
    num_blocks, size, width = blocks.shape
    if table.dim() != 1 or table.dtype != torch.int32 or not 0 <= length <= len(table) * size:
        raise ValueError(f"table is {list(table.shape)}, {table.dtype}: expected int32 [pages] for {length} tokens")
    if len(table) and not 0 <= int(table.min()) <= int(table.max()) < num_blocks:
        raise ValueError(f"table holds {int(table.min())} to {int(table.max())}: expected blocks 0 to {num_blocks - 1}")
    out = torch.empty(length, width, dtype=blocks.dtype, device=blocks.device)
    if length:
        gather_kernel[(length,)](blocks, table, out, width, BLOCK_SIZE=size, WIDTH=triton.next_power_of_2(width))
    return out


def cases() -> list[Case]:
    """Each kernel as a launch with its default block would compile it."""
    rows = {"x_ptr": "*fp32", "out_ptr": "*fp32", "row_stride": "i32", "width": "i32"}
    matmul = {"a_ptr": "*fp16", "b_ptr": "*fp16", "out_ptr": "*fp16", "M": "i32", "N": "i32", "K": "i32"}
    gathered = {"blocks_ptr": "*bf16", "table_ptr": "*i32", "out_ptr": "*bf16", "width": "i32"}
    added = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32"}
    between = {"times_ptr": "*fp32", "out_ptr": "*fp32", "count": "i32"}
    return [
        Case("puzzle add fp32", add_kernel, added, {"BLOCK": 1024}, 4, 2, False),
        Case("puzzle gaps fp32", gaps_kernel, between, {"BLOCK": 1024}, 4, 2, False),
        Case("puzzle row sum fp32", row_sum_kernel, rows, {"BLOCK": 1024}, 4, 2, False),
        Case("puzzle softmax fp32", softmax_kernel, rows, {"BLOCK": 1024}, 4, 2, False),
        Case("puzzle matmul fp16", matmul_kernel, matmul, {"BLOCK": 32}, 4, 2, True),
        Case("puzzle gather bf16", gather_kernel, gathered, {"BLOCK_SIZE": 16, "WIDTH": 128}, 4, 2, False),
    ]
