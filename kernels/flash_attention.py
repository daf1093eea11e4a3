"""FlashAttention, forward only, over ragged batches whose K and V lie end to end or in the blocks of a paged cache.

A program keeps a tile of queries of one row and head on the chip, and takes in the keys that these may see tile after
tile. No score is written to memory: the online softmax holds, for each query, the largest score so far, the sum of the
weights relative to it, and the weighted sum of the values (Dao et al. 2022; a program for each tile of queries as in
Dao 2023). `minillm.attention.flash` is the same in plain torch.

Three things keep the tensor cores busy. Tiles that the mask hides wholly are not read: a query sees a run of keys, so
they lie before and behind the tiles of the loop. A mask is computed only for tiles on the edges of what is seen. And
exponentials are powers of 2, which the hardware has, with log2(e) folded into the scale.

The last S_q of a row's S_k positions are its queries. Query i stands at position p = i + S_k - S_q and sees keys
j <= p if causal; with a window of W, j > p - W besides. A query that sees none gets 0, and a log-sum-exp of -inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from minillm.kernels.case import Case
from minillm.kernels.paged_decode import chip_of
from minillm.kernels.prefill_checks import HEAD_SIZES, check_arguments, check_keys, check_options, check_plan
from minillm.kernels.prefill_plan import Configuration, Plan, configurations, plan_tiles
from minillm.kernels.product import multiply

__all__ = ["HEAD_SIZES", "Configuration", "Plan", "cases", "configurations", "flash_attention",
           "flash_attention_reference", "plan_tiles"]


def flash_attention_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_lens: Sequence[int],
                              key_lens: Sequence[int], scale: float, *, causal: bool = True, window: int | None = None,
                              block_tables: torch.Tensor | None = None,
                              return_lse: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The twin of `flash_attention`: row by row, every score at once; q, k, v of any floating dtype."""
    outs, lses, first_key = [], [], 0
    for row, (queries, length) in enumerate(zip(q.split(list(query_lens)), key_lens)):  # [S_q, H, D]
        if block_tables is None:
            keys, values = (t[first_key : first_key + length] for t in (k, v))  # [S_k, H_kv, D], [S_k, H_kv, D_v]
        else:
            pages = block_tables[row, : -(-length // k.shape[1])].long().to(k.device)
            keys, values = (t[pages].flatten(0, 1)[:length] for t in (k, v))
        keys, values = (t.repeat_interleave(q.shape[1] // k.shape[-2], dim=1) for t in (keys, values))  # [S_k, H, ...]
        p = torch.arange(len(queries), device=q.device)[:, None] + length - len(queries)  # [S_q, 1]
        j = torch.arange(length, device=q.device)  # [S_k]
        visible = (j <= p if causal else j == j) & (j > p - (window or length + len(queries)))  # [S_q, S_k]
        scores = (torch.einsum("qhd,khd->hqk", queries, keys) * scale).masked_fill(~visible, float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num(0)  # a row of -inf becomes NaN, then 0
        outs.append(torch.einsum("hqk,khd->qhd", weights, values))  # [S_q, H, D_v]
        lses.append(torch.logsumexp(scores, dim=-1).T)  # [S_q, H]
        first_key += length
    out = torch.cat(outs) if outs else q.new_zeros(*q.shape[:2], v.shape[-1])
    lse = torch.cat(lses) if lses else q.new_zeros(*q.shape[:2])
    return (out, lse.to(torch.promote_types(q.dtype, torch.float32))) if return_lse else out


@triton.jit
def load_rows(ptr, rows, stride, inside, WIDTH: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """Rows of WIDTH values as a tile [rows, PADDED]. The padding, and rows not `inside` if MASKED, are not read: 0."""
    columns = tl.arange(0, PADDED)
    at = ptr + rows[:, None] * stride + columns[None, :]
    if WIDTH < PADDED:
        wanted = (columns < WIDTH)[None, :]
        if MASKED:
            wanted = wanted & inside[:, None]
        return tl.load(at, mask=wanted, other=0.0)
    if MASKED:
        return tl.load(at, mask=inside[:, None], other=0.0)
    return tl.load(at)


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
    scores = multiply(q, k.T, tl.zeros([q.shape[0], k.shape[0]], tl.float32))  # [BLOCK_M, BLOCK_N]
    if MASKED:
        scores = hide(scores, keys, begins, ends)
    new_best = tl.maximum(best, tl.max(scores, axis=1) * scale)  # [BLOCK_M]
    base = tl.where(new_best == float("-inf"), 0.0, new_best)  # nothing seen yet: 2^(-inf - 0) = 0, not NaN
    weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(best - base)
    total = total * shrink + tl.sum(weights, axis=1)
    out = multiply(weights.to(v.dtype), v, out * shrink[:, None])
    return new_best, total, out


# table_row varies from step to step; a group of 1 as a constant gains nothing, and costs registers under Triton 3.6
@triton.jit(do_not_specialize=["window", "table_row", "group"])
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, tiles_ptr, tables_ptr, q_row, q_head, k_row, k_head, v_row,
                 v_head, table_row, group, window, scale, CAUSAL: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr,
                 D_V: tl.constexpr, PADDED: tl.constexpr, PADDED_V: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_N: tl.constexpr):
    """Program (tile · group + head within the group, K/V head): neighbours read the same keys, which then lie in L2.

    *_row, *_head: strides, in values. window may be None; tables_ptr, table_row and PAGE, the slots of a
    block, are None where keys lie end to end. PADDED: D rounded up to a power of two.
    """
    tile = tiles_ptr + tl.program_id(0) // group * 6
    row, start, queries, length = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    first_query, first_key = tl.load(tile + 4), tl.load(tile + 5)
    # 64 bits for what is multiplied by a stride: a cache may hold more than 2**31 values
    kv_head = tl.program_id(1).to(tl.int64)
    head = kv_head * group + tl.program_id(0) % group
    k_ptr += kv_head * k_head
    v_ptr += kv_head * v_head
    if PAGE is None:
        k_ptr += first_key.to(tl.int64) * k_row
        v_ptr += first_key.to(tl.int64) * v_row
    else:
        tables_ptr += row.to(tl.int64) * table_row
    i = start + tl.arange(0, BLOCK_M)
    tokens = first_query.to(tl.int64) + i
    q = load_rows(q_ptr + head * q_head, tokens, q_row, i < queries, D, PADDED, MASKED=True)

    # query i sees keys from begins to ends; the tile's queries low to high, each of them whole_low to whole_high
    offset = length - queries
    begins, ends = None, tl.full([BLOCK_M], 0, tl.int32) + length
    low, whole_low, whole_high, high = 0, 0, length // BLOCK_N * BLOCK_N, length
    if CAUSAL:
        ends = i + offset + 1
        if window is not None:
            begins = ends - window
            low = tl.maximum(0, start + offset + 1 - window)
        high = tl.maximum(low, tl.minimum(start + BLOCK_M, queries) + offset)
        if window is not None:
            whole_low = tl.minimum(high, low + tl.cdiv(tl.maximum(0, high - window - low), BLOCK_N) * BLOCK_N)
        whole_high = tl.maximum(whole_low, low + tl.maximum(0, start + offset + 1 - low) // BLOCK_N * BLOCK_N)
    edges = (low, whole_low, whole_high, high)

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, PADDED_V], tl.float32)
    for part in tl.static_range(3):  # the window's edge, what all queries see, the diagonal or the end
        if part > 0 or window is not None:
            for n in range(edges[part], edges[part + 1], BLOCK_N):
                keys = n + tl.arange(0, BLOCK_N)
                inside = keys < high  # slots behind it may hold NaN, and 0 · NaN is NaN
                if PAGE is None:
                    slots = tl.arange(0, BLOCK_N)
                    k_tile, v_tile = k_ptr + tl.cast(n, tl.int64) * k_row, v_ptr + tl.cast(n, tl.int64) * v_row
                else:
                    blocks = tl.load(tables_ptr + keys // PAGE, mask=inside, other=0)
                    slots = blocks.to(tl.int64) * PAGE + keys % PAGE
                    k_tile, v_tile = k_ptr, v_ptr
                k = load_rows(k_tile, slots, k_row, inside, D, PADDED, part != 1)
                v = load_rows(v_tile, slots, v_row, inside, D_V, PADDED_V, part != 1)
                best, total, out = attend_tile(q, k, v, keys, begins, ends, scale, best, total, out, part != 1)

    total = tl.where(total == 0.0, 1.0, total)  # no key seen: out is 0, and best -inf
    out = out / total[:, None]
    at = tokens * (tl.num_programs(1) * group) + head
    columns = tl.arange(0, PADDED_V)
    tl.store(out_ptr + at[:, None] * D_V + columns[None, :], out.to(out_ptr.dtype.element_ty),
             mask=(i < queries)[:, None] & (columns < D_V)[None, :])
    tl.store(lse_ptr + at, (best + tl.log2(total)) * 0.6931471805599453, mask=i < queries)  # ln 2


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_lens: Sequence[int],
                    key_lens: Sequence[int], scale: float, *, causal: bool = True, window: int | None = None,
                    block_tables: torch.Tensor | None = None, return_lse: bool = False, plan: Plan | None = None,
                    configuration: Configuration | None = None) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row's queries to its keys: [T, H, D_v] in q's dtype; on request lse [T, H] float32.

    q [T, H, D] float32, float16 or bfloat16, rows of query_lens tokens end to end; k [S, H_kv, D], v [S, H_kv, D_v],
    rows of key_lens end to end. Or, paged: k [num_blocks, block_size, H_kv, D], v [..., D_v], block_tables [B, pages]
    int32: on the CPU they are checked, then moved; on a GPU not looked at, see `paged_decode.check_tables`. D and D_v
    one of HEAD_SIZES; strides free but for a head's own values. Which keys a query sees: see the top of this file.
    plan: from `plan_tiles`, for the same lengths; its block_m goes before the configuration's.
    Raises ValueError naming the argument.
    """
    check_arguments(q, k, v, block_tables is not None)
    check_options(scale, causal, window)
    check_keys(k, query_lens, key_lens, len(q), block_tables)
    if configuration is None:
        configuration = configurations(chip_of(q.device), max(q.shape[-1], v.shape[-1]), q.element_size(),
                                       window is not None or block_tables is not None)[0]
    if plan is None:
        plan = plan_tiles(query_lens, key_lens, q, causal=causal, window=window, block_m=configuration.block_m)
    check_plan(plan, query_lens, key_lens, q.device)
    if window is not None:  # one that shows everything, in 32 bits
        window = min(window, max(key_lens, default=0) + max(query_lens, default=0) + 1)
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)  # 1 value beside D_v: written whether asked for or not
    if len(plan.tiles):
        tables = None if block_tables is None else block_tables.to(q.device)
        group = q.shape[1] // k.shape[-2]
        flash_kernel[(len(plan.tiles) * group, k.shape[-2])](
            q, k, v, out, lse, plan.tiles, tables, *q.stride()[:2], *k.stride()[-3:-1], *v.stride()[-3:-1],
            None if tables is None else tables.stride(0), group, window, scale / math.log(2),
            **constants(causal, None if tables is None else k.shape[1], q.shape[-1], v.shape[-1],
                        configuration._replace(block_m=plan.block_m)),
            num_warps=configuration.num_warps, num_stages=configuration.num_stages)
    return (out, lse) if return_lse else out


def constants(causal: bool, page: int | None, dim: int, value_dim: int,
              configuration: Configuration) -> dict[str, object]:
    """What the kernel is compiled for."""
    return {"CAUSAL": causal, "PAGE": page, "D": dim, "D_V": value_dim, "PADDED": triton.next_power_of_2(dim),
            "PADDED_V": triton.next_power_of_2(value_dim), "BLOCK_M": configuration.block_m,
            "BLOCK_N": configuration.block_n}


SHAPES = [("causal", dim, "bf16") for dim in (64, 80, 96, 128, 256)]
SHAPES += [("full", 128, "bf16"), ("paged", 128, "bf16"), ("window", 128, "bf16"), ("paged window", 256, "bf16"),
           ("causal", 64, "fp32")]


def cases() -> list[Case]:
    """Every head size; and of the commonest one each kind of mask and of addressing."""
    chips = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")
    return [case(kind, dim, dtype, chip) for kind, dim, dtype in SHAPES for chip in chips]


def case(kind: str, dim: int, dtype: str, chip: str) -> Case:
    paged, windowed = "paged" in kind, "window" in kind
    config = configurations(chip, dim, 4 if dtype == "fp32" else 2, paged or windowed)[0]
    pointers = {name: f"*{dtype}" for name in ("q_ptr", "k_ptr", "v_ptr", "out_ptr")}
    strides = {name: "i32:16" for name in ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head")}
    signature = {**pointers, "lse_ptr": "*fp32", "tiles_ptr": "*i32", **strides, "group": "i32", "scale": "fp32"}
    constexprs = constants(kind != "full", 16 if paged else None, dim, dim, config)
    optional = {"tables_ptr": ("*i32", paged), "table_row": ("i32", paged), "window": ("i32", windowed)}
    signature |= {name: kind for name, (kind, given) in optional.items() if given}
    constexprs |= {name: None for name, (_, given) in optional.items() if not given}
    return Case(f"flash d{dim} {kind} {dtype}", flash_kernel, signature, constexprs, config.num_warps,
                config.num_stages, tensor_core=dtype != "fp32", chips=(chip,),
                warpgroup=dtype != "fp32" and config.block_m >= 64)
