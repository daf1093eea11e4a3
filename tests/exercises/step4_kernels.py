"""The checks of 4.11 and 4.12, parts of the attention kernels. A reader runs them with: minillm check 4.11

4.11 runs the package's flash_attention with the reader's attend_tile in its place. Its mistakes are the same algorithm
in torch, with a switch for each. 4.12 launches a kernel of its own around find_keys; a mistake is written as that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from minillm.course import pictures, stand_in, tracing
from minillm.course.checks import Case, Mistake, Outcome
from minillm.course.compare import difference
from minillm.course.triton_checks import KernelCheck, has_a_wrong_number, in_place_of, watched

with stand_in.where_triton_is_missing():  # the other checks of step 4 need none
    import triton
    import triton.language as tl

INF, LOG2_E = float("inf"), 1.4426950408889634
Tensors = tuple[torch.Tensor, ...]
Part = Callable[..., torch.Tensor]

# 4.11

HEAD = 64  # the smallest head: values that a case does not give are 0


def tile_cases() -> list[Case]:
    def case(about: str, q: list, k: list, v: list, tiles: tuple[int, int], scale: float = 1.0, *,
             causal: bool = False, window: int | None = None, dtype: torch.dtype = torch.float32) -> Case:
        values = {"q": q, "k": k, "v": v}
        told = [*(f"{name}={value}" for name, value in values.items()), f"{scale=:g}"]
        told += ["causal"] if causal else []
        told += [f"window {window}"] if window else []
        told += [f"tiles of {tiles[0]} x {tiles[1]}"]
        told += ["bfloat16"] if dtype == torch.bfloat16 else []
        tensors = {name: torch.tensor(value, dtype=dtype) for name, value in values.items()}
        return Case(about, {**tensors, "scale": scale, "causal": causal, "window": window, "tiles": tiles},
                    ", ".join(told))

    return [  # q [S_q, d], k [S_k, d], v [S_k, d_v], tiles of queries x keys
        case("one key", [[2]], [[3]], [[5]], (1, 1)),
        case("one tile of two keys", [[1]], [[0], [1]], [[2], [4]], (1, 2)),
        case("two tiles, a larger score in the second", [[1]], [[0], [3]], [[2], [4]], (1, 1)),
        case("two tiles, a far smaller score in the second", [[1]], [[900], [0]], [[2], [4]], (1, 1)),
        case("a scale of 1/2", [[1]], [[0], [2]], [[2], [4]], (1, 2), 0.5),
        case("scores of 1000, a scale of 1/4", [[10]], [[100], [99]], [[2], [4]], (1, 2), 0.25),
        case("two queries, each with another largest score", [[1], [0.01]], [[900], [800]], [[2], [4]], (2, 2)),
        case("the last tile is half full", [[1]], [[-3], [-4], [-5]], [[2], [4], [8]], (1, 2)),
        case("a key that comes too late has a large score", [[1], [1]], [[0], [900]], [[2], [4]], (2, 2), causal=True),
        case("the first query sees no key at all", [[1], [1]], [[3]], [[2]], (2, 1), causal=True),
        case("a window of one key: the second query sees nothing in the first tile", [[1], [1]], [[3], [2]],
             [[2], [4]], (2, 1), causal=True, window=1),
        case("weights of 1 and 0.70710678 round to 1 and 0.70703125", [[-0.5]], [[0], [1]], [[-0.70703125], [1]],
             (1, 2), 0.6931471805599453, dtype=torch.bfloat16),
        random_case(),
    ]


def random_case() -> Case:
    """Tiles that all queries see between two that not all do; every value of a head in use."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(count, HEAD, generator=generator) for count in (3, 8, 8))
    args = {"q": q, "k": k, "v": v, "scale": HEAD**-0.5, "causal": True, "window": 6, "tiles": (4, 2)}
    return Case("three queries and eight keys at random, 64 values each", args,
                "q [3, 64], k and v [8, 64] at random, scale=0.125, causal, window 6, tiles of 4 x 2")


def with_tile(attend_tile: Callable[..., Tensors], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
              causal: bool, window: int | None, tiles: tuple[int, int]) -> Tensors:
    """The package's flash_attention, with this in place of its own: (out [S_q, d_v], lse [S_q])."""
    from minillm.kernels import flash_attention as flash

    padded = [torch.nn.functional.pad(t, (0, HEAD - t.shape[1]))[:, None] for t in (q, k, v)]  # [S, 1, HEAD]
    starts = [[0, start, len(q), len(k), 0, 0] for start in range(0, len(q), tiles[0])]
    # not from plan_tiles: tiles that can be computed by hand are smaller than those that it gives a GPU
    plan = flash.Plan(torch.tensor(starts, dtype=torch.int32), tiles[0], (len(q),), (len(k),))
    with in_place_of(flash, "attend_tile", attend_tile), tracing.no_truth_of_blocks(), np.errstate(all="ignore"):
        out, lse = flash.flash_attention(*padded, [len(q)], [len(k)], scale, causal=causal, window=window,
                                         return_lse=True, plan=plan,
                                         configuration=flash.Configuration(*tiles, 4, 1))
    return out[:, 0, : v.shape[1]], lse[:, 0]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, window: int | None,
             tiles: tuple[int, int], step: Callable[..., Tensors]) -> Tensors:
    """What with_tile gives, in torch: tile by tile, `step` for each tile of keys."""
    outs, lses = [], []
    for start in range(0, len(q), tiles[0]):
        i = torch.arange(start, start + tiles[0])[:, None]  # [BLOCK_M, 1]
        queries = torch.cat([q, q.new_zeros(tiles[0], q.shape[1])])[start : start + tiles[0]]
        offset = len(k) - len(q)
        low = max(0, start + offset + 1 - window) if window else 0
        high = max(low, min(start + tiles[0], len(q)) + offset) if causal else len(k)
        state = (queries.new_full((tiles[0],), -INF), queries.new_zeros(tiles[0]),
                 queries.new_zeros(tiles[0], v.shape[1]))
        for first in range(low, high, tiles[1]):
            j = torch.arange(first, first + tiles[1])  # [BLOCK_N]
            there = (j < high)[:, None]
            keys, values = (torch.where(there, t[j.clamp(max=len(t) - 1)], 0) for t in (k, v))
            seen = (j <= i + offset if causal else j < len(k)) & (j > i + offset - (window or len(k) + len(q)))
            state = step(queries @ keys.T, seen, values, scale * LOG2_E, *state)
        best, total, out = state
        total = torch.where(total == 0, 1, total)
        outs.append(out / total[:, None])
        lses.append((best + torch.log2(total)) / LOG2_E)
    return torch.cat(outs)[: len(q)], torch.cat(lses)[: len(q)]


def tile_step(*, hide: Part = lambda scores, seen: scores.masked_fill(~seen, -INF),
              largest: Part = lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1) * scale),
              base: Part = lambda new_best: new_best.masked_fill(new_best == -INF, 0),
              power: Part = lambda shown, scale, base, best: torch.exp2(shown * scale - base[:, None]),
              factor: Part = lambda best, base: torch.exp2(best - base),
              old_total: Part = lambda total, shrink: total * shrink,
              old_out: Part = lambda out, shrink: out * shrink[:, None],
              new: Part = lambda part, shrink: part,
              total_of: Part = lambda weights: weights.sum(1),
              told: Part = lambda new_best, best: new_best,
              end: Part = lambda out, total: out) -> Callable[..., Tensors]:
    """attend_tile in torch, with a switch for each mistake."""
    def step(raw: torch.Tensor, seen: torch.Tensor, v: torch.Tensor, scale: float, best: torch.Tensor,
             total: torch.Tensor, out: torch.Tensor) -> Tensors:
        shown = hide(raw, seen)
        new_best = largest(best, shown, raw, scale)
        zero = base(new_best)
        weights, shrink = power(shown, scale, zero, best), factor(best, zero)
        total = old_total(total, shrink) + new(total_of(weights), shrink)
        out = old_out(out, shrink) + new(weights @ v, shrink[:, None])
        return told(new_best, best), total, end(out, total)

    return step


def tiles_like(parts: int = 2, nan: bool = False, **switches: Part) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: every result in float32 is that of attend_tile with these switches; parts 1: but for its lse.

    nan: also if a single case is wrong, and that by nothing but NaN.
    """
    step = tile_step(**switches)

    def explains(o: Outcome) -> bool:
        try:
            return difference(attended(**o.case.args, step=step)[:parts], o.came[:parts], 1e-4) is None
        except RuntimeError:  # shapes that this mistake makes of larger tiles do not match
            return False

    def predicate(outcomes: Sequence[Outcome]) -> bool:
        wide = [o for o in outcomes if o.case.args["q"].dtype == torch.float32]
        wrong = [o for o in wide if difference(o.expected[:parts], o.came[:parts], 1e-4)]
        pairs = [pair for o in wrong for pair in zip(o.expected, o.came)]
        sure = nan or len(wrong) > 1 or any(has_a_wrong_number(*pair) for pair in pairs)
        return bool(wrong) and sure and all(map(explains, wide))

    return predicate


def compares_with_none(outcomes: Sequence[Outcome]) -> bool:
    """An error where a case has no window, and so no begins."""
    failed = next(o for o in outcomes if not o.right)
    return failed.case.args["window"] is None and "NoneType" in str(failed.error)


def only_rounding_is_missing(outcomes: Sequence[Outcome]) -> bool:
    """Right in float32; in bfloat16 what weights in float32 give."""
    wrong = [o for o in outcomes if not o.right]
    if any(o.case.args["q"].dtype != torch.bfloat16 or o.came is None for o in wrong):
        return False
    wide = [{name: value.float() if isinstance(value, torch.Tensor) else value for name, value in o.case.args.items()}
            for o in wrong]
    return all(difference(attended(**args, step=tile_step()), tuple(part.float() for part in o.came), 1e-5) is None
               for args, o in zip(wide, wrong))


def only_bfloat16_is_wrong(outcomes: Sequence[Outcome]) -> bool:
    return all(o.case.args["q"].dtype == torch.bfloat16 and o.came is not None for o in outcomes if not o.right)


def unchanged(part: torch.Tensor, shrink: torch.Tensor) -> torch.Tensor:
    return part


def unguarded(new_best: torch.Tensor) -> torch.Tensor:
    return new_best


SHRINK = "What was summed before is of powers less the old best: a larger best makes it smaller, times 2^(old - new)."
ROUND = ("tl.dot multiplies tiles of one dtype, so on a GPU this is not compiled: weights in float32, v in bfloat16. "
         "Make the weights v's dtype.")
NOTHING = "A query that has seen no key has best = -inf, and -inf - -inf is NaN: subtract 0 there, then 2^-inf is 0."
SCALE = "Scores are times scale wherever they are used, and best is of scaled scores: once each, and everywhere."
BASE = "scale holds log2(e), for powers of 2: tl.exp2, for the weights and for the factor."
EARLY = "Scores that are not seen must be hidden before the largest is looked for: it would be a hidden one's."
EACH = "Each query has a largest score of its own: the maximum goes along the keys, axis 1."
TILE = KernelCheck(
    "4.11",
    tile_cases,
    names=("out:", "lse:"),
    telling=True,
    call=with_tile,
    mistakes=(
        Mistake("not-shrunk", SHRINK, when=tiles_like(old_total=unchanged, old_out=unchanged)),
        Mistake("not-shrunk", SHRINK + " That goes for out too.", when=tiles_like(old_out=unchanged)),
        Mistake("not-shrunk", SHRINK + " That goes for total too.", when=tiles_like(old_total=unchanged)),
        Mistake("wrong-factor", "What was summed before is multiplied by 2^(old best - new best): at most 1, and 0 at "
                "first, when best is -inf.",
                when=tiles_like(factor=lambda best, base: torch.exp2(base - best))),
        Mistake("all-shrunk", "The tile's weights are of the new best already: only what was summed before shrinks.",
                when=tiles_like(new=lambda part, shrink: part * shrink)),
        Mistake("base-e", BASE, when=tiles_like(
            power=lambda shown, scale, base, best: torch.exp(shown * scale - base[:, None]),
            factor=lambda best, base: torch.exp(best - base))),
        Mistake("base-e", BASE, when=tiles_like(
            power=lambda shown, scale, base, best: torch.exp(shown * scale - base[:, None]))),
        Mistake("base-e", BASE, when=tiles_like(factor=lambda best, base: torch.exp(best - base))),
        Mistake("log2-twice", "scale is times log2(e) already: scores times scale are exponents of 2.", when=tiles_like(
            power=lambda shown, scale, base, best: torch.exp2(shown * scale * LOG2_E - base[:, None]))),
        Mistake("scale-left-out", SCALE, when=tiles_like(  # best is of scores as they are
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1)))),
        Mistake("scale-left-out", SCALE, when=tiles_like(
            power=lambda shown, scale, base, best: torch.exp2(shown - base[:, None]))),
        Mistake("scale-left-out", SCALE, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1)),
            power=lambda shown, scale, base, best: torch.exp2(shown - base[:, None]))),
        Mistake("scale-left-out", SCALE, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1)),
            power=lambda shown, scale, base, best: torch.exp2((shown - base[:, None]) * scale))),
        Mistake("scaled-twice", SCALE, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1) * scale**2),
            power=lambda shown, scale, base, best: torch.exp2(shown * scale**2 - base[:, None]))),
        Mistake("scaled-twice", SCALE, when=tiles_like(
            power=lambda shown, scale, base, best: torch.exp2(shown * scale**2 - base[:, None]))),
        Mistake("scaled-twice", SCALE, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.amax(1) * scale**2))),
        Mistake("nothing-seen-is-nan", NOTHING, when=tiles_like(nan=True, base=unguarded)),
        Mistake("nothing-seen-is-nan", NOTHING + " The factor needs it too.", when=tiles_like(
            factor=lambda best, base: torch.exp2(best - base.masked_fill(best == -INF, -INF)))),
        Mistake("nothing-seen-is-nan", NOTHING + " The weights need it too.", when=tiles_like(
            nan=True,
            base=unguarded, factor=lambda best, base: torch.exp2(best - base).nan_to_num(0.0))),
        Mistake("nothing-seen-is-nan", NOTHING + " Elsewhere the new best itself is subtracted.", when=tiles_like(
            base=lambda new_best: new_best.where(new_best == -INF, 0))),
        Mistake("one-total-for-all", "Each query has a total of its own: the sum goes along the keys, axis 1.",
                when=tiles_like(total_of=lambda weights: weights.sum().expand(len(weights)))),
        Mistake("base-of-the-wrong-axis", "base is one number a query: base[:, None] stands beside all of its keys.",
                when=tiles_like(power=lambda shown, scale, base, best: torch.exp2(shown * scale - base))),
        Mistake("hidden-counts", "A hidden score is -inf: a query that sees no key would get the mean of V otherwise.",
                when=tiles_like(1, hide=lambda scores, seen: scores.masked_fill(~seen, -1e30))),
        Mistake("not-hidden", "Some tiles lie on an edge of what a query sees: if MASKED, hide the scores.",
                when=tiles_like(hide=lambda scores, seen: scores)),
        Mistake("begins-is-none", "begins is None where there is no window: then each query sees keys from 0 on. hide "
                "asks for that.", when=compares_with_none),
        Mistake("hidden-too-late", EARLY, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, raw.amax(1) * scale))),
        Mistake("best-of-the-tile", "best is the largest of all scores so far, not of this tile.", when=tiles_like(
            largest=lambda best, shown, raw, scale: shown.amax(1) * scale)),
        Mistake("best-not-handed-on", "What is returned is of the new best: hand that on, or the next tile is wrong.",
                when=tiles_like(told=lambda new_best, best: best)),
        Mistake("less-the-old-best", "The tile's powers are less the new best: the old one is too small, or -inf.",
                when=tiles_like(power=lambda shown, scale, base, best: torch.exp2(shown * scale - best[:, None]))),
        Mistake("one-best-for-all", EACH, when=tiles_like(
            largest=lambda best, shown, raw, scale: torch.maximum(best, shown.max() * scale))),
        Mistake("old-forgotten", "What earlier tiles gave stays part of the sums.", when=tiles_like(
            old_total=lambda total, shrink: torch.zeros_like(total),
            old_out=lambda out, shrink: torch.zeros_like(out))),
        Mistake("old-forgotten", "What earlier tiles gave stays part of out: multiply adds to it.", when=tiles_like(
            old_out=lambda out, shrink: torch.zeros_like(out))),
        Mistake("divided-early", "out stays a sum: the kernel divides it once, when the last tile is done.",
                when=tiles_like(end=lambda out, total: out / total.masked_fill(total == 0, 1)[:, None])),
        Mistake("weights-not-cast", ROUND, when=only_rounding_is_missing),
        Mistake("interpreter-dot", "Right in float32. Triton's interpreter multiplies bfloat16 as integers: use "
                "multiply, which knows that, in place of tl.dot.", when=only_bfloat16_is_wrong),
    ),
)

# 4.12


@triton.jit
def look_up(table_ptr, block_ptr, slot_ptr, first_value_ptr, length, values, FIND: tl.constexpr,
            BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Keys 0 to length - 1, TILE of them a program: block, slot, and which value of the cache is their first."""
    keys = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = keys < length
    block, slot = FIND(table_ptr, keys, inside, BLOCK_SIZE)
    tl.store(block_ptr + keys, block, mask=inside)
    tl.store(slot_ptr + keys, slot, mask=inside)
    at = (block * BLOCK_SIZE + slot) * values
    tl.store(first_value_ptr + keys + 0 * at, at, mask=inside)  # 0 * at: as part of an address, which a float cannot be


def looked_up(find_keys: Callable[..., Tensors], table: torch.Tensor, block_size: int, length: int, values: int,
              tile: int) -> Tensors:
    """(block, slot, first value) [length] of the keys, as find_keys has them."""
    found = tuple(torch.empty(length, dtype=torch.int64) for _ in range(3))
    look_up[(-(-length // tile),)](table, *found, length, values, FIND=find_keys, BLOCK_SIZE=block_size, TILE=tile)
    return found


def keys_cases() -> list[Case]:
    def case(about: str, table: list[int], block_size: int, length: int, tile: int, values: int = 1) -> Case:
        shown = (f"table {table}, BLOCK_SIZE={block_size}, {length} keys in tiles of {tile}, {values:,} "
                 f"value{'s' if values > 1 else ''} a key")
        return Case(about, {"table": torch.tensor(table, dtype=torch.int32), "block_size": block_size,
                            "length": length, "values": values, "tile": tile}, shown)

    return [
        case("one block", [0], 4, 4, 4),
        case("two blocks, the later one first", [7, 3], 2, 4, 4),
        case("one block, somewhere", [3], 2, 2, 2),
        case("a block for each key", [4, 0, 2, 1], 1, 4, 4),
        case("blocks of three", [4, 1], 3, 6, 2),
        case("the last block is not full", [2, 0], 2, 3, 1),
        case("the last tile is not full", [5, 2, 6], 2, 6, 4),
        case("a tile is larger than all there is", [1], 4, 3, 8),
        case("values beyond 2**32", [1_500_001], 16, 2, 2, 192),
    ]


def called_with(function: Callable, **args: object) -> tuple:
    """(block, slot, first value, accesses) of a find_keys."""
    found, told = watched(lambda **rest: looked_up(function, **rest), **args)
    return (*found, told)


def drawn(ours: Callable, theirs: Callable, args: dict) -> Sequence[str]:
    return pictures.draw(lambda **rest: looked_up(ours, **rest), lambda **rest: looked_up(theirs, **rest), args)


def entries(table_ptr: tl.tensor, places: tl.tensor, mask: tl.tensor | None) -> tl.tensor:
    return tl.load(table_ptr + places, mask=mask, other=None if mask is None else 0).to(tl.int64)


SLOT = "keys % BLOCK_SIZE is the slot: a block has BLOCK_SIZE of them, 0 to BLOCK_SIZE - 1."
ENTRY = "The table has an entry for each block of the row, not for each key: keys // BLOCK_SIZE."
KEYS = KernelCheck(
    "4.12",
    keys_cases,
    telling=True,
    names=("block", "slot", "first value", "accesses:"),
    tolerance=0.0,
    call=called_with,
    draw=drawn,
    mistakes=(
        Mistake("mask-turned-round", "A load with a mask is made where the mask is true: these are the keys `inside`.",
                like=lambda t, k, i, size: (entries(t, k // size, ~i), k % size)),
        Mistake("table-not-used", "keys // BLOCK_SIZE is which of the row's blocks: which block of the cache that is, "
                "its table says.", like=lambda t, k, i, size: (k // size, k % size)),
        Mistake("slot-is-key", SLOT, like=lambda t, k, i, size: (entries(t, k // size, i), k)),
        Mistake("key-in-the-table", ENTRY, like=lambda t, k, i, size: (entries(t, k, i), k % size)),
        Mistake("entry-and-slot-swapped", "keys // BLOCK_SIZE is the entry of the table, keys % BLOCK_SIZE the slot.",
                like=lambda t, k, i, size: (entries(t, k % size, i), k // size)),
        Mistake("first-block-only", ENTRY, like=lambda t, k, i, size: (entries(t, k * 0, i), k % size)),
        Mistake("block-times-size", "The block's number is asked for: whoever called multiplies by BLOCK_SIZE.",
                like=lambda t, k, i, size: (entries(t, k // size, i) * size, k % size)),
        Mistake("order-swapped", "The order is block, slot.",
                like=lambda t, k, i, size: (k % size, entries(t, k // size, i))),
        Mistake("no-mask", "The last tile has keys that the row has not: the table has no entry for them, and what is "
                "loaded behind it may be no memory at all. `inside` is the mask.",
                like=lambda t, k, i, size: (entries(t, k // size, None), k % size)),
        Mistake("32-bits", "2**31 values and more do not fit into 32 bits: a cache may have them. .to(tl.int64), "
                "before anything is multiplied.",
                like=lambda t, k, i, size: (tl.load(t + k // size, mask=i, other=0), k % size)),
    ),
)

CHECKS = (TILE, KEYS)
