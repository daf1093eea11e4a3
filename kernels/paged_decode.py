"""Decode attention over a paged cache: one query a row, the keys in blocks anywhere, their work split.

A decode step reads all of K and V once and does little with them: about one multiplication a value for each query head,
so bytes are the cost. Two things keep them few and fast. The query heads of a group share a K/V head: one program
takes all of them, and loads K and V once. And where rows and heads are fewer than the chip runs programs, each row's
keys are split among several, whose results `merge` joins (FlashDecoding, Dao et al. 2023).

K and V may be codes of a quantised cache: INT8, or FP8 (E4M3) as bytes, with one scale for each head of each block.
They are read as they are, half the bytes of 16-bit values. A scale is the same along a key, so it multiplies the key's
score, or the weight of its V, rather than each value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case
from minillm.kernels.decode_checks import MAX_OUTPUT, check_arguments, check_scales
from minillm.kernels.e4m3 import decode_e4m3
from minillm.kernels.merge import MAX_SPLITS, merge_splits
from minillm.kernels.product import multiply

NO_WINDOW = 2**31 - 1
PROGRAMS_PER_PROCESSOR = 2  # that run at once: with fewer, nothing is in flight while one computes
MIN_TILES = 2  # of a split: a program waits for memory twice, for the table and for K, before it computes


def paged_decode_reference(q: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor, block_tables: torch.Tensor,
                           context_lens: torch.Tensor | Sequence[int], scale: float, *, window: int | None = None,
                           k_scales: torch.Tensor | None = None, v_scales: torch.Tensor | None = None,
                           return_lse: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The twin of `paged_decode`: the same arguments but splits, q of any floating dtype; reads its tables back."""
    group = q.shape[1] // k_blocks.shape[2]
    out = q.new_zeros(*q.shape[:2], v_blocks.shape[3])
    lse = q.new_full(q.shape[:2], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32))
    for row, length in enumerate(int(length) for length in context_lens):
        if length == 0:
            continue
        first = 0 if window is None else max(0, length - window)
        pages = block_tables[row, : -(-length // k_blocks.shape[1])].long().to(q.device)
        k, v = (decode_blocks(blocks[pages], None if scales is None else scales[pages], q.dtype)
                .flatten(0, 1)[first:length].repeat_interleave(group, dim=1)  # [keys, H, D]
                for blocks, scales in ((k_blocks, k_scales), (v_blocks, v_scales)))
        scores = torch.einsum("hd,khd->hk", q[row], k) * scale  # [H, keys]
        out[row] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=-1), v)
        lse[row] = torch.logsumexp(scores, dim=-1)
    return (out, lse) if return_lse else out


def decode_blocks(blocks: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Blocks [n, block_size, H_kv, D] as numbers: values as they are, or codes times scales [n, 1, H_kv, 1]."""
    if scales is None:
        return blocks.to(dtype)
    codes = blocks.view(torch.float8_e4m3fn) if blocks.dtype == torch.uint8 else blocks
    return codes.to(dtype) * scales.to(dtype)


@triton.jit
def find_keys(table_ptr, keys, inside, BLOCK_SIZE: tl.constexpr):
    """Where keys of a row lie: (block, in 64 bits, and slot within it). What is not `inside` is not looked up.

    keys, inside [TILE]; table_ptr: the row's blocks, in order, each of BLOCK_SIZE slots.
    """
    blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=inside, other=0)
    return blocks.to(tl.int64), keys % BLOCK_SIZE  # 64 bits: a cache may hold more than 2**31 values


@triton.jit
def load_heads(ptr, at, inside, D: tl.constexpr, WIDTH: tl.constexpr):
    """Runs of D values, the at-th ones in memory -> [TILE, WIDTH]. What is outside is 0 and not read."""
    columns = tl.arange(0, WIDTH)
    mask = inside[:, None]
    if D < WIDTH:
        mask = mask & (columns < D)[None, :]
    return tl.load(ptr + at[:, None] * D + columns[None, :], mask=mask, other=0)


@triton.jit
def as_numbers(loaded, DTYPE: tl.constexpr):
    """Values as they are, codes as numbers. INT8 and E4M3 are exact in bfloat16, and in float16."""
    if loaded.dtype == tl.uint8:
        return decode_e4m3(loaded).to(DTYPE)
    elif loaded.dtype == tl.int8:
        return loaded.to(tl.float32).to(DTYPE)
    else:
        return loaded


@triton.jit
def online_softmax(scores, best, total):
    """Take in scores [ROWS, TILE]: their weights, the new maximum and sum [ROWS], and what earlier results shrink by.

    A score may be -inf though its key is seen, where the product overflows: as long as all are, nothing is summed.
    """
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    base = tl.where(new_best == float("-inf"), 0.0, new_best)  # e^(-inf - 0) = 0, where -inf - -inf would be NaN
    weights = tl.exp(scores - base[:, None])
    correction = tl.exp(best - base)
    return weights, new_best, total * correction + tl.sum(weights, axis=1), correction


@triton.jit(do_not_specialize=["window", "max_pages"])  # they vary from step to step, and are used once
def paged_decode_kernel(q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, k_scales_ptr, v_scales_ptr, out_ptr, lse_ptr, scale,
                        window, max_pages, kv_heads, GROUP: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr,
                        D_V: tl.constexpr, WIDTH: tl.constexpr, WIDTH_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
                        TILE: tl.constexpr, WEIGHTS: tl.constexpr):
    """Program (row and K/V head, split): GROUP query heads against the split's share of the row's keys, TILE at a time.

    The queries stand in ROWS rows, at least 16, the height of a tensor core's tile: even a group of one leaves
    the tensor cores mostly idle, since K and V arrive far slower than they are multiplied. WIDTH and WIDTH_V: D and
    D_V rounded up to a power of two. WEIGHTS: the dtype in which weights meet V.
    """
    pair, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    row, kv_head = pair // kv_heads, pair % kv_heads  # neighbours read neighbouring heads
    length = tl.load(lens_ptr + row)
    first = tl.maximum(length - window, 0)  # the first key that the window shows
    share = tl.cdiv(tl.cdiv(length - first, TILE), splits) * TILE  # keys of a split: whole tiles
    begin = first + split * share
    end = tl.minimum(begin + share, length)

    member = tl.arange(0, ROWS)
    heads = pair * GROUP + member  # row * H + head: the query heads of a group are neighbours
    in_group = member < GROUP
    q = load_heads(q_ptr, heads, in_group, D, WIDTH)  # [ROWS, WIDTH]
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH_V], tl.float32)
    for start in range(begin, end, TILE):
        keys = start + tl.arange(0, TILE)
        inside = keys < end
        blocks, slots = find_keys(tables_ptr + row * max_pages, keys, inside, BLOCK_SIZE)
        at = (blocks * BLOCK_SIZE + slots) * kv_heads + kv_head  # runs of D values in [blocks, slots, H_kv]
        # both masked: slots behind a row's end may hold NaN, and 0 · NaN is NaN
        k = load_heads(k_ptr, at, inside, D, WIDTH)  # [TILE, WIDTH]
        v = load_heads(v_ptr, at, inside, D_V, WIDTH_V)
        scores = multiply(q, as_numbers(k, q.dtype).T, tl.zeros([ROWS, TILE], tl.float32)) * scale
        if k_scales_ptr is not None:
            k_scale = tl.load(k_scales_ptr + blocks * kv_heads + kv_head, mask=inside, other=0.0)
            scores *= k_scale.to(tl.float32)[None, :]
        scores = tl.where(inside[None, :], scores, float("-inf"))
        weights, best, total, correction = online_softmax(scores, best, total)
        if v_scales_ptr is not None:
            v_scale = tl.load(v_scales_ptr + blocks * kv_heads + kv_head, mask=inside, other=0.0)
            weights *= v_scale.to(tl.float32)[None, :]
        out = multiply(weights.to(WEIGHTS), as_numbers(v, WEIGHTS), out * correction[:, None])  # [ROWS, WIDTH_V]

    # without keys: 0 and best's -inf, which the merge takes as nothing
    total = tl.where(total == 0.0, 1.0, total)
    out /= total[:, None]
    columns, part = tl.arange(0, WIDTH_V), heads * splits + split
    tl.store(out_ptr + part[:, None] * D_V + columns[None, :], out.to(out_ptr.dtype.element_ty),
             mask=in_group[:, None] & (columns < D_V)[None, :])
    tl.store(lse_ptr + part, best + tl.log(total), mask=in_group)


class Configuration(NamedTuple):
    """How the kernel is compiled: keys of a tile, warps of a program, stages of the loop's software pipeline."""

    tile: int
    warps: int
    stages: int


def chip_of(device: torch.device) -> str:
    """The target of `minillm kernels` whose configurations suit a device; "interpreter" for one that is no GPU."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        return "gfx942"
    known = {(8, 0): "sm_80", (9, 0): "sm_90", (10, 0): "sm_100", (10, 3): "sm_100"}
    return known.get(torch.cuda.get_device_capability(device), "sm_89")  # the one with the least shared memory


def configurations(chip: str, dim: int, value_dim: int, kv_bytes: int, group: int) -> list[Configuration]:
    """What is worth trying on a chip, the default first. kv_bytes: of one value of K or V; 4 with float32 queries,
    whatever K and V are kept as.

    tile: 32 KB of K and V where values have 16 bits; half as many codes, which become numbers in registers, and no more
    than 32 keys of them; no more than 4,096 scores. In float32, multiplied without tensor cores, a quarter of the
    values and of the scores, but 16 keys at least. Beyond, a thread's registers spill.
    warps: 4, and 8 where the group is so large that a thread would keep 64 values of output (16 in float32).
    stages: addresses come from the block table, so the pipeline has two loads in a row, and Triton spreads its stages
    over both: 5 keep two tiles in flight and 3 keep one. An H200 (132 SMs, 4.8 TB/s) needs 36 KB in flight an SM for
    each µs that memory takes; five programs with 5 stages of 32 keys of 128 fit, where those of 64 keys spill registers
    under Triton 3.6. sm_80 and sm_89 need less, and have room for more programs with 3. CDNA3 has no asynchronous
    copies: 2, a tile waits in registers.
    """
    if chip == "interpreter":
        return [Configuration(32, 4, 2)]
    width, value_width = (triton.next_power_of_2(d) for d in (dim, value_dim))
    values, scores = {1: (8192, 4096), 2: (16384, 4096), 4: (4096, 1024)}[kv_bytes]
    keys = max(16, min(values // (width + value_width), scores // rows_of(group)))
    tile = min(1 << keys.bit_length() - 1, 32 if kv_bytes == 1 else keys)  # a power of two: 16 to 128
    outputs = rows_of(group) * value_width * (4 if kv_bytes == 4 else 1)
    warps = 8 if outputs >= MAX_OUTPUT else 4
    stages = {"gfx942": (2,), "sm_80": (3, 5), "sm_89": (3, 5)}.get(chip, (5, 3))
    halved = chip in ("sm_90", "sm_100") and kv_bytes == 2 and width >= 128
    return [Configuration(tile // 2 if halved and count == 5 else tile, warps, count) for count in stages]


def rows_of(group: int) -> int:
    """Rows of a program's tile of queries: a tensor core multiplies at least 16."""
    return max(16, triton.next_power_of_2(group))


@lru_cache
def processors(device: torch.device) -> int:
    """SMs, or compute units, of a device; 2 under the interpreter, so that small inputs split as large ones do."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@lru_cache
def choose_splits(pairs: int, keys: int, tile: int, programs: int) -> int:
    """Into how many parts each row's keys are split. pairs: of row and K/V head; programs: that run at once.

    The fewest with which the last round of programs leaves about as few places empty as any number would. keys is
    what a row has room for, not what it holds: that lies on the device, and to read it would stop a CUDA graph.
    """
    most = max(1, min(MAX_SPLITS, keys // (MIN_TILES * tile)))
    totals = [max(1, pairs) * splits for splits in range(1, most + 1)]
    filled = [total / (triton.cdiv(total, programs) * programs) for total in totals]
    return 1 + next(i for i, share in enumerate(filled) if share >= 0.9 * max(filled))


def paged_decode(q: torch.Tensor, k_blocks: torch.Tensor, v_blocks: torch.Tensor, block_tables: torch.Tensor,
                 context_lens: torch.Tensor, scale: float, *, window: int | None = None,
                 k_scales: torch.Tensor | None = None, v_scales: torch.Tensor | None = None, splits: int | None = None,
                 return_lse: bool = False,
                 configuration: Configuration | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query a row, at the end of its keys: [B, H, D_v] in q's dtype; on request lse [B, H] float32.

    q [B, H, D] float32, float16 or bfloat16; k_blocks [num_blocks, block_size, H_kv, D], v_blocks [..., D_v] in q's
    dtype, or both int8 or both uint8 (bytes of FP8, E4M3) with k_scales and v_scales [num_blocks, 1, H_kv, 1].
    block_tables [B, pages] and context_lens [B], int32 on q's device: values are not looked at here, so a launch may
    stand in a CUDA graph; see `check_tables`. A row of length 0 gives 0 and -inf. window: how many keys a query sees,
    the query's own included. splits, configuration: chosen where None. Raises ValueError naming the argument.
    """
    check_arguments(q, k_blocks, v_blocks, block_tables, context_lens)
    if not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}: expected a finite number")
    check_scales(k_blocks, k_scales, v_scales)
    for name, number, most in (("window", window, NO_WINDOW), ("splits", splits, MAX_SPLITS)):
        if number is not None and (not isinstance(number, int) or not 1 <= number <= most):
            raise ValueError(f"{name} is {number!r}: expected None, or 1 to {most}")
    (rows, heads, dim), (_, block_size, kv_heads, value_dim) = q.shape, v_blocks.shape
    group, window = heads // kv_heads, window or NO_WINDOW
    kv_bytes = 4 if q.dtype == torch.float32 else k_blocks.element_size()
    config = configuration or configurations(chip_of(q.device), dim, value_dim, kv_bytes, group)[0]
    if splits is None:
        keys = min(block_tables.shape[1] * block_size, window)
        splits = choose_splits(rows * kv_heads, keys, config.tile, PROGRAMS_PER_PROCESSOR * processors(q.device))
    # one part is the result; several are joined, and stay in float32 until then
    parts = q.new_empty(rows * heads, splits, value_dim, dtype=q.dtype if splits == 1 else torch.float32)
    lse = q.new_empty(rows * heads, splits, dtype=torch.float32)
    if rows:
        compiled_for = constants(q.dtype, dim, value_dim, group, block_size, k_scales is not None, config.tile)
        paged_decode_kernel[(rows * kv_heads, splits)](
            q, k_blocks, v_blocks, block_tables, context_lens, k_scales, v_scales, parts, lse, scale, window,
            block_tables.shape[1], kv_heads, **compiled_for, num_warps=config.warps, num_stages=config.stages)
    out, lse = merge_splits(parts, lse, q.dtype) if splits > 1 else (parts, lse)
    out = out.view(rows, heads, value_dim)
    return (out, lse.view(rows, heads)) if return_lse else out


def constants(dtype: torch.dtype, dim: int, value_dim: int, group: int, block_size: int, codes: bool,
              tile: int) -> dict[str, object]:
    """What the kernel is compiled for.

    WEIGHTS: with codes, weights carry V's scale, which may be too small for float16. bfloat16 rounds them by 2^-9 at
    most, INT8 and FP8 round V by more.
    """
    weights = torch.bfloat16 if codes and dtype == torch.float16 else dtype
    return {"GROUP": group, "ROWS": rows_of(group), "D": dim, "D_V": value_dim, "WIDTH": triton.next_power_of_2(dim),
            "WIDTH_V": triton.next_power_of_2(value_dim), "BLOCK_SIZE": block_size, "TILE": tile,
            "WEIGHTS": getattr(tl, str(weights).removeprefix("torch."))}


def check_tables(block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], num_blocks: int,
                 block_size: int) -> None:
    """What `paged_decode` would read out of bounds, looked for on the host, once a step.

    block_tables: each row's blocks in order; what follows its last page may be anything. context_lens: its length.
    Raises ValueError naming the row.
    """
    if len(block_tables) != len(context_lens):
        raise ValueError(f"block_tables has {len(block_tables)} rows: expected {len(context_lens)}, as context_lens")
    for row, (table, length) in enumerate(zip(block_tables, context_lens)):
        if not 0 <= length <= len(table) * block_size:
            raise ValueError(f"context_lens[{row}] is {length}: expected 0 to {len(table) * block_size}, the slots of "
                             f"the row's {len(table)} blocks")
        used = table[: -(-length // block_size)]
        if used and not 0 <= min(used) <= max(used) < num_blocks:
            wrong = next(block for block in used if not 0 <= block < num_blocks)
            raise ValueError(f"block_tables[{row}] names block {wrong}: expected 0 to {num_blocks - 1}")


def cases() -> list[Case]:
    """Head sizes and groups, both kinds of codes, float32; and all configurations of the commonest."""
    shapes = [(dim, group, "bf16") for dim in (64, 128) for group in (1, 4, 8)]
    shapes += [(80, 1, "bf16"), (256, 8, "bf16"), (128, 4, "i8"), (128, 4, "u8"), (64, 4, "u8"), (128, 64, "bf16")]
    shapes += [(128, 4, "fp32"), (64, 64, "fp32"), (128, 4, "i8 fp32")]
    return [case(*shape, chips, config)
            for shape in shapes
            for chips in (("sm_80", "sm_89"), ("sm_90", "sm_100"), ("gfx942",))
            for config in shape_configurations(*shape, chips[0])[: None if shape == (128, 4, "bf16") else 1]]


def shape_configurations(dim: int, group: int, kv: str, chip: str) -> list[Configuration]:
    return configurations(chip, dim, dim, 4 if "fp32" in kv else 2 if kv == "bf16" else 1, group)


def case(dim: int, group: int, kv: str, chips: tuple[str, ...], config: Configuration) -> Case:
    """The kernel as a launch compiles it, for chips that share a configuration.

    kv: what K and V are kept as, and the queries' type where it is another: of codes bf16, if none is named.
    """
    kept, _, queries = kv.partition(" ")
    codes = kept in ("i8", "u8")
    queries = queries or ("bf16" if codes else kept)
    pointers = {"q_ptr": f"*{queries}", "k_ptr": f"*{kept}", "v_ptr": f"*{kept}", "tables_ptr": "*i32",
                "lens_ptr": "*i32", "out_ptr": f"*{queries}", "lse_ptr": "*fp32"}
    scales = dict.fromkeys(("k_scales_ptr", "v_scales_ptr"), "*fp32" if codes else None)
    numbers = {"scale": "fp32", "window": "i32", "max_pages": "i32", "kv_heads": "i32"}
    halves = queries != "fp32"
    constexprs = constants(torch.bfloat16 if halves else torch.float32, dim, dim, group, 16, codes, config.tile)
    name = f"decode d{dim} group {group} {kv.replace('i8', 'int8').replace('u8', 'fp8')}"
    signature = {**pointers, **numbers, **(scales if codes else {})}
    return Case(name, paged_decode_kernel, signature, constexprs if codes else {**scales, **constexprs}, config.warps,
                config.stages, tensor_core=halves, chips=chips, warpgroup=halves and rows_of(group) >= 64)
