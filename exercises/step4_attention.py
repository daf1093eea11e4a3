"""Step 4, Attention: variants, tiles and kernels: the exercises.

Write in your own copy, mine/exercises/step4_attention.py. The commands, in the order in which you need them:

    minillm check 4.1       does it work? if not, the smallest case where it goes wrong
    minillm hint 4.1        one hint more each time, three in all
    minillm solution 4.1    yours and ours side by side (once yours passes, or after three hints)
    minillm reset 4.1       start this one again; what you had is kept in mine/backups
    minillm progress        what is done, what is next

exercises/step4_attention.py is generated from the package's source by minillm.course.build.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from minillm.kernels.product import INTERPRETED
from minillm.kernels.puzzles import check_launch, check_rows

from minillm.attention import flash, reference
from minillm.attention.flash import State
from minillm.attention.variants import mla_scale

# Warm-up: small ones to begin with. They do not count against your progress.


# ----------------------------------------------------------------------------
# 4.1 Puzzle: add two vectors
# 10 minutes, difficulty 1 of 3, our answer has 4 lines
# Teaches: A kernel is one program of many. Its number says which elements are its own.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


def add_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y, element by element."""
    return x + y


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i]. Program 0 does elements 0 to BLOCK - 1, program 1 the next BLOCK, and so on: all full."""
    raise NotImplementedError("exercise 4.1")


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


# ----------------------------------------------------------------------------
# 4.2 Puzzle: load with a mask
# 10 minutes, difficulty 1 of 3, our answer has 5 lines
# Teaches: A mask says which elements there are; `other` stands for those that there are not.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


def gaps_reference(times: torch.Tensor) -> torch.Tensor:
    """What lies between neighbours, the first counted from 0: the times of tokens become TTFT and ITLs."""
    return times - torch.cat([times.new_zeros(1), times])[:-1]


@triton.jit
def gaps_kernel(times_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """out[i] = times[i] - times[i - 1], and out[0] = times[0]. BLOCK elements a program; there are only `count`."""
    raise NotImplementedError("exercise 4.2")


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


# ----------------------------------------------------------------------------
# 4.3 Puzzle: sum each row
# 10 minutes, difficulty 1 of 3, our answer has 4 lines
# Teaches: A block becomes one number; where a row begins is a matter of strides, and a sum is kept
#   wide.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


def row_sum_reference(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row, in float32: [M, N] -> [M]."""
    return x.float().sum(dim=1)


@triton.jit
def row_sum_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    """out[i] = the sum of row i in float32, by program i. The row begins row_stride elements after the one before it.

    It has `width` elements, and fits into one block of BLOCK, a power of two.
    """
    raise NotImplementedError("exercise 4.3")


def row_sum(x: torch.Tensor) -> torch.Tensor:
    """Launch row_sum_kernel: see `row_sum_reference`. x [M, N], rows maybe apart, a floating dtype; ValueError else."""
    check_rows(x)
    rows, width = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        row_sum_kernel[(rows,)](x, out, x.stride(0), width, BLOCK=triton.next_power_of_2(width))
    return out


# ----------------------------------------------------------------------------
# 4.4 Puzzle: softmax of each row
# 10 minutes, difficulty 2 of 3, our answer has 6 lines
# Teaches: Load a row once and do all of it there: two reductions and no step back to memory between
#   them.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


def softmax_reference(x: torch.Tensor) -> torch.Tensor:
    """Softmax of each row: e^x over the sum of all e^x, both less the row's largest value, which changes nothing."""
    powers = torch.exp(x - x.amax(dim=1, keepdim=True))  # [M, N], at most 1: no overflow
    return powers / powers.sum(dim=1, keepdim=True)


@triton.jit
def softmax_kernel(x_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    """Row i of out = softmax of row i of x, by program i. Rows of x are row_stride apart, those of out `width`.

    A row fits into one block of BLOCK, a power of two. It is read once.
    """
    raise NotImplementedError("exercise 4.4")


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


# ----------------------------------------------------------------------------
# 4.5 Puzzle: a matrix product in tiles
# 10 minutes, difficulty 2 of 3, our answer has 7 lines
# Teaches: A program makes one tile of the result: it goes along K tile by tile, and adds up
#   products of tiles.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


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
    raise NotImplementedError("exercise 4.5")
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


# ----------------------------------------------------------------------------
# 4.6 Puzzle: tokens through a block table
# 10 minutes, difficulty 2 of 3, our answer has 6 lines
# Teaches: An address may itself be loaded: so a kernel finds a token in a paged cache.
# Lesson: notebooks/04_attention.ipynb, section "A gentle way into Triton"


def gather_reference(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """A sequence's tokens out of the blocks in its table: [num_blocks, size, width], [pages] -> [length, width]."""
    return blocks[table.long()].flatten(0, 1)[:length]


@triton.jit
def gather_kernel(blocks_ptr, table_ptr, out_ptr, width, BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Row t of out = token t of the sequence, by program t. It lies in block table[t // BLOCK_SIZE].

    blocks [num_blocks, BLOCK_SIZE, width]: block after block in memory, in it token after token of `width` values.
    These fit into WIDTH, a power of two.
    """
    raise NotImplementedError("exercise 4.6")


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


# The core exercises.


# ----------------------------------------------------------------------------
# 4.7 Query heads that share K and V
# 10 minutes, difficulty 1 of 3, our answer has 4 lines
# Teaches: GQA is MHA over K and V that are kept once for several query heads. Which ones share is a
#   convention.
# Lesson: notebooks/04_attention.ipynb, section "What a variant keeps"


def multi_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: torch.Tensor) -> torch.Tensor:
    """MHA: every head has K and V of its own (Vaswani et al. 2017). Kept of a token: H * (D + D_v) values.

    q [S_q, H, D], k [S_k, H, D], v [S_k, H, D_v] -> [S_q, H, D_v].
    """
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)  # [S_q, H, D_v]


def expand_kv_heads(kv: torch.Tensor, heads: int) -> torch.Tensor:
    """K or V as each query head sees it: [S_k, H_kv, D] -> [S_k, H, D], heads = H a multiple of H_kv.

    Each K/V head serves a run of H / H_kv neighbouring query heads: a b -> a a b b.
    """
    raise NotImplementedError("exercise 4.7")


def grouped_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
                  visible: torch.Tensor) -> torch.Tensor:
    """GQA: H / H_kv query heads share a K/V head (Ainslie et al. 2023). Kept of a token: H_kv * (D + D_v) values.

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v], visible [S_q, S_k] -> [S_q, H, D_v]. H_kv = H is MHA, H_kv = 1
    is MQA.
    """
    raise NotImplementedError("exercise 4.7")


# ----------------------------------------------------------------------------
# 4.8 A window that slides
# 10 minutes, difficulty 2 of 3, our answer has 6 lines
# Teaches: Who sees whom: where a query stands when others are cached, and how many keys a window of
#   W shows it.
# Lesson: notebooks/04_attention.ipynb, section "What a variant keeps"


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device | str) -> torch.Tensor:
    """Boolean [S_q, S_k], True where query i may see key j: none that is later, and with a window none too far back.

    The queries are the last S_q of the S_k positions; of more queries than keys the first see none. With a window of W
    each query sees at most W keys, itself included (Mistral's convention).
    """
    raise NotImplementedError("exercise 4.8")


# ----------------------------------------------------------------------------
# 4.9 The online softmax
# 25 minutes, difficulty 3 of 3, our answer has 7 lines
# Teaches: The step that makes FlashAttention possible: a sum of powers that can be put right when a
#   larger comes.
# Lesson: notebooks/04_attention.ipynb, section "Softmax, one tile at a time"


def online_softmax_update(scores: torch.Tensor, v: torch.Tensor, m: torch.Tensor, total: torch.Tensor,
                          acc: torch.Tensor) -> State:
    """Take one more tile of keys into the softmax of a tile of queries (Milakov and Gimelshein 2018).

    scores [H, B, B_k], -inf where hidden, v [H, B_k, D_v], and the state so far: m, total [H, B], acc [H, B, D_v].
    Returns the new (m, total, acc). All that was summed so far was divided by e^m of the old m: a larger m rescales it.
    """
    raise NotImplementedError("exercise 4.9")


# ----------------------------------------------------------------------------
# 4.10 Two partial results become one
# 15 minutes, difficulty 2 of 3, our answer has 4 lines
# Teaches: What a part must hand over so that others can be added: its result, and one number to
#   weigh it with.
# Lesson: notebooks/04_attention.ipynb, section "Splitting the keys"


def merge(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor,
          lse_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys from attention over each: the merge law, associative.

    out [S_q, H, D_v] over a part of the keys and lse [S_q, H], log Σ e^score over them -> both over all of them. A part
    without keys (out 0, lse -inf) changes nothing; neither do two.
    """
    raise NotImplementedError("exercise 4.10")


# ----------------------------------------------------------------------------
# 4.11 The inner step of the Triton kernel
# 25 minutes, difficulty 3 of 3, our answer has 10 lines
# Teaches: The online softmax where it belongs: on the chip, a tile of queries against tile after
#   tile of keys.
# Lesson: notebooks/04_attention.ipynb, section "The kernels, exact"


@triton.jit
def multiply(a, b, acc):
    """acc + a @ b, summed in float32; a and b of one dtype, which they keep on a GPU.

    The interpreter holds bfloat16 as integers and would multiply those, so there both are made float32 first: the
    same numbers (Triton issue 11584).
    """
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def hide(scores, keys, begins, ends):
    """-inf for keys outside begins <= key < ends of each query; begins None: from 0."""
    visible = keys[None, :] < ends[:, None]
    if begins is not None:
        visible = visible & (keys[None, :] >= begins[:, None])
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, MASKED: tl.constexpr):
    """Take one tile of keys into the softmax of a tile of queries: the state (best, total, out), one tile later.

    q [BLOCK_M, PADDED], k [BLOCK_N, PADDED], v [BLOCK_N, PADDED_V]. A score is q · k · scale, and scale is the caller's
    times log2(e), so that powers of 2 are those of e. MASKED: not every query sees all keys of the tile, see `hide`.
    best, total [BLOCK_M]: the largest score so far, at first -inf, and the sum of the weights 2^(score - best); out
    [BLOCK_M, PADDED_V]: the sum of the values by these weights. A larger best shrinks what was summed before.
    """
    raise NotImplementedError("exercise 4.11")


# Further: what follows does not count against your progress.


# ----------------------------------------------------------------------------
# 4.12 Where a key lies
# 10 minutes, difficulty 2 of 3, our answer has 2 lines
# Teaches: A kernel reads a paged cache as it is: an entry of the block table for each key of a
#   tile, then the key.
# Lesson: notebooks/04_attention.ipynb, section "The kernels, exact"


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    """Where keys of a row lie: (block, in 64 bits, and slot within it). What is not `inside` is not looked up.

    keys, inside [TILE]; table_ptr: the row's blocks, in order, each of BLOCK_SIZE slots.
    """
    raise NotImplementedError("exercise 4.12")


# ----------------------------------------------------------------------------
# 4.13 Attention over latents
# 20 minutes, difficulty 3 of 3, our answer has 7 lines
# Teaches: A projection of every key is the transposed projection of one query: so latents are never
#   expanded.
# Lesson: notebooks/04_attention.ipynb, section "What a variant keeps"


def values_from_latent(out: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """What heads would have found in their values: out [S, H, R], means of latents, w_uv [H, D_v, R] -> [S, H, D_v]."""
    return torch.einsum("shr,hvr->shv", out, w_uv)


def absorb(q_nope: torch.Tensor, q_rope: torch.Tensor, w_uk: torch.Tensor) -> torch.Tensor:
    """The query that meets the latent itself: q_nope [S, H, D_n], q_rope [S, H, D_r] -> [S, H, R + D_r].

    w_uk [H, D_n, R] makes head h's key of a latent c [R]: W_UK[h]·c, and the rotated part stands behind it.
    q·(W_UK·c) = (W_UKᵀ·q)·c: the up-projection is done once for the query instead of once for every key.
    """
    raise NotImplementedError("exercise 4.13")


def mla_absorbed(q_nope: torch.Tensor, q_rope: torch.Tensor, latent: torch.Tensor, k_rope: torch.Tensor,
                 w_uk: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """MLA as MQA over the latents: one K head of R + D_r values, whose first R are its V. Causal, as `mla_expanded`.

    q_nope [S_q, H, D_n], q_rope [S_q, H, D_r], latent [S_k, R], k_rope [S_k, D_r] -> [S_q, H, D_v].
    """
    raise NotImplementedError("exercise 4.13")


# ----------------------------------------------------------------------------
# 4.14 Bug hunt: a window with a leak
# 15 minutes, difficulty 2 of 3, our answer has 1 line
# Teaches: A mask has two edges, and a tile may lie on either. One left out shows only where tile
#   and window cross.
# Lesson: notebooks/04_attention.ipynb, section "Softmax, one tile at a time"


def seen_with_a_bug(queries: int, keys: int, block: int, window: int) -> torch.Tensor:
    """Which keys each query sees if attention goes by tiles of `block` queries and `block` keys: [S_q, S_k], boolean.

    It should be those of `reference.causal_mask`: the queries are the last of the positions, and each sees the last
    `window` keys up to itself. There is one mistake in it.
    """
    mask = reference.causal_mask(queries, keys, window, "cpu")
    seen = torch.zeros_like(mask)
    for rows in flash.tiles(range(queries), block):
        first, last = rows[0] + keys - queries, rows[-1] + keys - queries  # positions of the tile's queries
        for columns in flash.tiles(range(keys), block):
            tile = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            if columns[0] > last or columns[-1] <= first - window:
                continue  # too late or too old for all of the tile's queries: it is skipped
            if columns[-1] > first:  # some keys are too late for some queries
                seen[tile] = mask[tile]
            else:
                seen[tile] = True  # no mask is needed
    return seen


def smallest_leak() -> dict[str, int]:
    """Sizes of the smallest input on which seen_with_a_bug is wrong: queries, keys, block and window.

    Each is at least 1, and there are no more queries than keys. Smallest: the fewest queries and keys together.
    """
    raise NotImplementedError("exercise 4.14")
