"""The check of 2.4. A reader runs it with: minillm check 2.4"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from minillm.course.checks import Case, Check, Mistake

# 2.4


def slot_cases() -> list[Case]:
    def case(about: str, table: list[int], start: int, end: int, block_size: int) -> Case:
        args = {"table": table, "start": start, "end": end, "block_size": block_size}
        return Case(about, args, function="slot_mapping")

    return [
        case("the first token", [3], 0, 1, 4),
        case("a whole block", [3], 0, 4, 4),
        case("a token of the second page", [7, 2], 5, 6, 4),
        case("from one block into the next", [5, 1], 2, 6, 4),
        case("blocks of one token", [4, 0, 2], 0, 3, 1),
        case("three pages, begun in the first", [2, 0, 5], 1, 8, 3),
        case("no token", [2], 3, 3, 4),
    ]


def gather_cases() -> list[Case]:
    def case(about: str, num_blocks: int, size: int, table: list[int], length: int, heads: int = 1, dim: int = 1,
             dtype: torch.dtype = torch.float32) -> Case:
        slots = torch.arange(num_blocks)[:, None] * 10 + torch.arange(size)  # a value says where it lies
        parts = torch.arange(heads)[:, None] / 10 + torch.arange(dim) / 100
        blocks = (slots[:, :, None, None] + parts).to(dtype)
        shown = f"blocks {list(blocks.shape)}, the token at place p of block b holds 10·b + p"
        shown += "" if heads == dim == 1 else " (+ 0.1 a head, 0.01 a value)"
        args = {"blocks": blocks, "table": torch.tensor(table), "length": length}
        return Case(about, args, f"{shown}; table {table}, length={length}", "gather_blocks")

    return [
        case("one block, full", 2, 2, [1], 2),
        case("one block, half full", 2, 2, [1], 1),
        case("two blocks, the later one first", 3, 2, [2, 0], 4),
        case("two blocks, the last half full", 3, 2, [2, 0], 3),
        case("blocks of one token", 4, 1, [3, 1, 2], 3),
        case("two heads of two values, float64", 5, 3, [4, 0, 2], 7, 2, 2, torch.float64),
    ]


def maps(page: Callable[[int, int], int] = lambda i, size: i // size,
         offset: Callable[[int, int], int] = lambda i, size: i % size,
         which: Callable[[int, int], Sequence[int]] = range,
         slot: Callable[[int, int, int], int] = lambda block, place, size: block * size + place,
         ) -> Callable[..., list[int]]:
    """slot_mapping with one of its parts put differently."""
    def slot_mapping(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
        return [slot(table[page(i, block_size)], offset(i, block_size), block_size) for i in which(start, end)]

    return slot_mapping


def offset_from_start(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    return [table[i // block_size] * block_size + (i - start) % block_size for i in range(start, end)]


def gathers(order: Callable[[torch.Tensor], torch.Tensor] = lambda table: table,
            lay: Callable[[torch.Tensor], torch.Tensor] = lambda pages: pages.flatten(0, 1),
            cut: Callable[[torch.Tensor, int], torch.Tensor] = lambda tokens, length: tokens[:length],
            ) -> Callable[..., torch.Tensor]:
    """gather_blocks with one of its parts put differently."""
    def gather_blocks(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
        return cut(lay(blocks[order(table)]), length)

    return gather_blocks


def full_pages_only(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    return blocks[table[: length // blocks.shape[1]]].flatten(0, 1)


MAPPING = (
    Mistake(
        "table-not-used",
        "Block number i // block_size of the text is one of the pool's blocks, and the table says which.",
        like=lambda table, start, end, block_size: list(range(start, end)),
    ),
    Mistake(
        "place-forgotten",
        "All tokens of a block have the same slot here: i % block_size tells them apart.",
        like=maps(offset=lambda i, size: 0),
    ),
    Mistake(
        "blocks-overlap",
        "Each block has block_size slots: block 2 begins at slot 2 * block_size, not at slot 2.",
        like=maps(slot=lambda block, place, size: block + place),
    ),
    Mistake(
        "blocks-not-slots",
        "A slot is a place for one token, not the block that it lies in.",
        like=maps(slot=lambda block, place, size: block),
    ),
    Mistake(
        "start-ignored",
        "Tokens start to end - 1 are asked for: those before start have been written already.",
        like=maps(which=lambda start, end: range(end)),
    ),
    Mistake(
        "start-ignored",
        "The first token asked for is number start of its sequence, not number 0.",
        like=maps(which=lambda start, end: range(end - start)),
    ),
    Mistake(
        "end-included",
        "Token end is the first one that is not asked for.",
        like=maps(which=lambda start, end: range(start, end + 1)),
    ),
    Mistake(
        "end-missed",
        "The last token asked for is number end - 1: range leaves its end out already.",
        like=maps(which=lambda start, end: range(start, end - 1)),
    ),
    Mistake(
        "table-by-token",
        "The table has one entry a page, not one a token: token i lies in page i // block_size.",
        like=maps(page=lambda i, size: i),
    ),
    Mistake(
        "table-by-place",
        "The quotient is the page, the remainder the place in it: they are the wrong way round.",
        like=maps(page=lambda i, size: i % size, offset=lambda i, size: i // size),
    ),
    Mistake(
        "page-one-further",
        "Pages are counted from 0: tokens 0 to block_size - 1 lie in table[0].",
        like=maps(page=lambda i, size: i // size + 1),
    ),
    Mistake(
        "page-one-further",
        "Pages are counted from 0: token block_size - 1 still lies in table[0].",
        like=maps(page=lambda i, size: (i + 1) // size),
    ),
    Mistake(
        "page-one-further",
        "Pages are counted from 0: tokens 0 to block_size - 1 lie in table[0], not in table[-1].",
        like=maps(page=lambda i, size: i // size - 1),
    ),
    Mistake(
        "place-from-start",
        "The place in a block is counted from the block's beginning: i % block_size, wherever start is.",
        like=offset_from_start,
    ),
)
GATHERING = (
    Mistake(
        "table-not-used",
        "The sequence's pages lie where the table says, not in the first blocks.",
        like=gathers(order=lambda table: torch.arange(len(table))),
    ),
    Mistake(
        "in-the-pools-order",
        "The text goes in the order of the table, not in that of the block numbers.",
        like=gathers(order=lambda table: table.sort().values),
    ),
    Mistake(
        "not-cut",
        "The last page may be partly full: what is behind the first `length` tokens is no part of the text.",
        like=gathers(cut=lambda tokens, length: tokens),
    ),
    Mistake(
        "end-kept",
        "The first `length` tokens are asked for: the rest of the last page is what has to go.",
        like=gathers(cut=lambda tokens, length: tokens[-length:]),
    ),
    Mistake(
        "cut-too-early",
        "The last page counts too, although it is not full: round the number of pages up, then cut the tokens.",
        like=full_pages_only,
    ),
    Mistake(
        "pages-not-joined",
        "One token after the other is asked for, [length, H_kv, D]: lay the pages end to end.",
        like=gathers(lay=lambda pages: pages),
    ),
    Mistake(
        "pages-not-joined",
        "One token after the other is asked for, [length, H_kv, D]: lay the pages end to end.",
        like=gathers(lay=lambda pages: pages, cut=lambda tokens, length: tokens),
    ),
    Mistake(
        "wrong-dimensions-joined",
        "Pages and places in them become one dimension, the first two: heads stay heads.",
        like=gathers(lay=lambda pages: pages.flatten(1, 2)),
    ),
    Mistake(
        "places-before-pages",
        "First all tokens of the first page, then those of the second: pages vary more slowly than places.",
        like=gathers(lay=lambda pages: pages.transpose(0, 1).flatten(0, 1)),
    ),
    Mistake(
        "first-page-only",
        "A sequence has as many pages as its table has entries: all of them are needed.",
        like=gathers(order=lambda table: table[:1]),
    ),
)

SLOTS = Check(
    "2.4",
    lambda: [*slot_cases(), *gather_cases()],
    tolerance=1e-6,
    mistakes=(
        *(replace(mistake, function="slot_mapping") for mistake in MAPPING),
        *(replace(mistake, function="gather_blocks") for mistake in GATHERING),
    ),
)

CHECKS = (SLOTS,)
