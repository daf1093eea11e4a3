"""What a prefill launch decides on the host: the size of its tiles, and which of them there are.

A program of `flash_attention` takes one tile of queries of one row, for one head. The rows of a step have any lengths,
so their tiles are listed: a plan, made once a step and shared by its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
from minillm.kernels.paged_decode import chip_of


class Configuration(NamedTuple):
    """How the kernel is compiled: queries of a tile, keys of a tile, warps, and stages of the loop's pipeline."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


# by the head size, padded to a power of two
TILES = {
    "sm_80": {64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (64, 32, 8, 2)},
    "sm_89": {64: (128, 64, 8, 3), 128: (128, 32, 8, 3), 256: (64, 32, 8, 2)},
    "sm_90": {64: (128, 128, 8, 3), 128: (128, 128, 8, 2), 256: (128, 32, 8, 2)},
    "sm_100": {64: (128, 32, 8, 3), 128: (128, 64, 8, 3), 256: (128, 16, 8, 2)},
    "gfx942": {64: (128, 32, 4, 2), 128: (128, 32, 4, 2), 256: (64, 32, 4, 2)},
}


def configurations(chip: str, dim: int, value_bytes: int, scattered: bool = False) -> list[Configuration]:
    """What is worth trying on a chip, the default first. dim: the larger head size; value_bytes: of one value.

    A program keeps block_m · dim values of output in registers, beside block_m · block_n scores: the default is the
    largest tile that spills none of them, as `minillm kernels` shows. On sm_90 and sm_100 128 queries are 64 for each
    of two groups of four warps, the least that wgmma and tcgen05 multiply. sm_80, sm_89 and gfx942 hold the queries in
    registers too, hence fewer keys. scattered: keys lie in pages, each with a pointer of its own, or a window gives the
    mask a second edge; both take registers. Pages also put two loads in a row, and a third stage keeps both in flight,
    where there is the memory for it; CDNA3 has no asynchronous copies and no use for it. The others need less of
    everything: half the keys, and with half the queries and warps two programs share an SM, one computing weights while
    the other multiplies. Values of 32 bits are multiplied without tensor cores, one by one: small tiles.
    """
    if chip == "interpreter":
        return [Configuration(32, 32, 4, 1)]
    if value_bytes == 4:
        return [Configuration(16, 16, 4, 1)]
    best = Configuration(*TILES[chip][max(64, triton.next_power_of_2(dim))])
    if scattered:
        stages = 2 if chip == "gfx942" or (chip in ("sm_80", "sm_89") and dim > 128) else 3
        best = best._replace(block_n=16 if chip == "gfx942" else min(best.block_n, 64), num_stages=stages)
    fewer_keys = best._replace(block_n=max(16, best.block_n // 2), num_stages=best.num_stages + 1)
    return [best, fewer_keys, fewer_keys._replace(block_m=best.block_m // 2, num_warps=best.num_warps // 2)]


@dataclass(frozen=True)
class Plan:
    """The tiles of a step's queries.

    tiles [n, 6] int32 on the device, a line for each program: the row, the tile's first query within it, the row's
    queries and keys, and where the row's queries and (unpaged) keys begin among all rows'.
    """

    tiles: torch.Tensor
    block_m: int
    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]


def plan_tiles(query_lens: Sequence[int], key_lens: Sequence[int], q: torch.Tensor, *, causal: bool = True,
               window: int | None = None, block_m: int | None = None, value_dim: int = 0) -> Plan:
    """Cut each row's queries into tiles of block_m (default: as the chip of q [T, H, D] likes them; value_dim: V's head
    size where it is larger).

    Those with the most keys to see come first: programs start in order, and one that starts last should not be long.
    causal and window matter for that order only. Raises ValueError for lengths that do not go with q or each other, and
    for a block_m that is no power of two from 16 on.
    """
    check_lengths(query_lens, key_lens, len(q))
    if block_m is None:
        block_m = configurations(chip_of(q.device), max(q.shape[-1], value_dim), q.element_size())[0].block_m
    if block_m < 16 or block_m & (block_m - 1):
        raise ValueError(f"block_m is {block_m}: expected a power of two, at least 16")
    first_queries, first_keys = ([0, *accumulate(lengths)] for lengths in (query_lens, key_lens))
    tiles = [(row, start, queries, keys, first_queries[row], first_keys[row])
             for row, (queries, keys) in enumerate(zip(query_lens, key_lens)) for start in range(0, queries, block_m)]

    def keys_seen(tile: tuple[int, ...]) -> int:
        _, start, queries, keys, _, _ = tile
        if not causal:
            return keys
        first, end = start + keys - queries, min(start + block_m, queries) + keys - queries
        return max(0, end) - (0 if window is None else max(0, first - window + 1))

    tiles.sort(key=keys_seen, reverse=True)
    on_device = torch.tensor(tiles, dtype=torch.int32).reshape(-1, 6).to(q.device)
    return Plan(on_device, block_m, tuple(query_lens), tuple(key_lens))


def check_lengths(query_lens: Sequence[int], key_lens: Sequence[int], tokens: int) -> None:
    """query_lens has a length for each row and sums to `tokens`, key_lens has as many; ValueError otherwise."""
    for name, lengths in (("query_lens", query_lens), ("key_lens", key_lens)):
        if any(length < 0 for length in lengths):
            raise ValueError(f"{name} is {list(lengths)}: expected no length below 0")
    if len(query_lens) != len(key_lens):
        raise ValueError(f"key_lens has {len(key_lens)} rows: expected {len(query_lens)}, as query_lens")
    if sum(query_lens) != tokens:
        raise ValueError(f"query_lens sums to {sum(query_lens)}: expected {tokens}, the tokens of q")
