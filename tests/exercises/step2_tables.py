"""The check of 2.3. A reader runs it with: minillm check 2.3"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minillm.cache.blocks import BlockPool
from minillm.course.checks import Case, Check, Mistake, Outcome

SIZE, SPARE = 4, 6  # tokens of a block; free blocks in each case, more than any answer needs

# 2.3


def writing_cases() -> list[Case]:
    def case(about: str, table: list[int], refs: list[int], start: int, end: int,
             cached: Sequence[int] = ()) -> Case:
        args = {"table": table, "refs": refs, "start": start, "end": end, "cached": list(cached)}
        shown = f"blocks of {SIZE} tokens, table {table}, start={start}, end={end}"
        shown += f"; these blocks have {refs} holders" if refs else ""
        shown += f", an index knows {list(cached)}" if cached else ""
        return Case(about, args, f"{shown}; 'a', 'b', … below are new blocks")

    return [
        case("a new sequence's first token", [], [], 0, 1),
        case("the last block has room", [0], [1], 2, 3),
        case("the last block is full", [0], [1], 4, 5),
        case("a prompt that fills its block exactly", [], [], 0, 4),
        case("a prompt of three blocks", [], [], 0, 11),
        case("two tables share both blocks, the last has room", [0, 1], [2, 2], 6, 7),
        case("two tables share both blocks, both are full", [0, 1], [2, 2], 8, 9),
        case("only the first block is shared", [0, 1], [3, 1], 5, 6),
        case("a prefix index knows both blocks, the last has room", [0, 1], [1, 1], 6, 7, [0, 1]),
        case("three tables share a block, and an index knows it", [0], [3], 1, 2, [0]),
        case("many tokens from the middle of a shared block", [0], [2], 3, 13),
        case("two shared blocks are written into", [0, 1, 2], [2, 2, 1], 2, 12),
        case("blocks were added to the table before", [0, 1, 2], [1, 1, 1], 2, 3),
    ]


def use_table(function: Callable[..., Any], table: list[int], refs: list[int], start: int, end: int,
              cached: list[int]) -> Any:
    """The table after the call and the copies, with new blocks as "a", "b", …: which of the free ones came is open."""
    pool = BlockPool(len(refs) + SPARE, SIZE)
    pool.refs[: len(refs)], pool.cached = refs, set(cached)
    pool.free = list(range(len(refs), pool.num_blocks))
    table = list(table)
    copies = function(pool, table, start, end)
    if not isinstance(copies, (list, tuple)):
        return copies
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in copies):
        return f"copies {copies!r}, no pairs"
    pairs = [tuple(pair) for pair in copies]
    names: dict[Any, Any] = {block: block for block in range(len(refs))}
    new: list[int] = []
    for block in [*table, *(block for pair in pairs for block in pair)]:
        if block not in names:
            names[block] = chr(ord("a") + len(new))
            new.append(block)
    holders = pool.refs[: len(refs)] + [pool.refs[block] for block in new]
    made = sorted((tuple(names[block] for block in pair) for pair in pairs), key=str)
    return [names[block] for block in table], made, holders, sorted(pool.cached), len(pool.free)


def writable(pool: BlockPool, table: list[int], start: int, end: int, *,
             pages: Callable[..., Any] = lambda table, start: range(start // SIZE, len(table)),
             copied: Callable[..., bool] = lambda pool, block: pool.is_shared(block),
             leave: Callable[..., None] = lambda pool, block: pool.release([block]), replace: bool = True,
             lacking: Callable[..., int] = lambda table, end: -(-end // SIZE) - len(table),
             told: Callable[..., tuple] = lambda old, own: [(old, own)]) -> list[tuple[int, int]]:
    """make_writable with a switch for each mistake."""
    copies = []
    for page in pages(table, start):
        if copied(pool, table[page]):
            (own,), old = pool.allocate(), table[page]
            copies += told(old, own)
            leave(pool, old)
            if replace:
                table[page] = own
    table += pool.allocate(max(0, lacking(table, end)))
    return copies


def writes(**switches: Any) -> Callable[..., Any]:
    return lambda pool, table, start, end: writable(pool, table, start, end, **switches)


def on_a_copy(pool: BlockPool, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
    """The loop writes into the caller's table, the blocks that it lacks go to another list."""
    copies = writable(pool, table, start, end, lacking=lambda table, end: 0)
    table = table + pool.allocate(max(0, pool.blocks_for(end) - len(table)))
    return copies


def wholly_on_a_copy(pool: BlockPool, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
    return writable(pool, list(table), start, end)


def freed(pool: BlockPool, block: int) -> None:
    pool.refs[block] = 0
    pool.free.append(block)


def without_copies(pool: BlockPool, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
    """The index forgets the block, which is then written into."""
    for page in range(start // SIZE, len(table)):
        if table[page] in pool.cached:
            pool.uncache(table[page])
    return writable(pool, table, start, end)


def pairs_reversed(outcomes: Sequence[Outcome]) -> bool:
    """Everything is right but the order within the pairs."""
    return all(o.error is None and o.came[0] == o.expected[0] and o.came[2:] == o.expected[2:]
               and sorted(map(str, o.came[1])) == sorted(str(pair[::-1]) for pair in o.expected[1]) for o in outcomes)


COPY_ON_WRITE = Check(
    "2.3",
    writing_cases,
    call=use_table,
    names=("table", "copies", "holders", "cached", "free blocks left"),
    mistakes=(
        Mistake(
            "shared-block-written",
            "Others read from that block: whoever writes into a shared one needs a copy of it first.",
            like=writes(copied=lambda pool, block: False),
        ),
        Mistake(
            "copies-what-is-ours",
            "A block with one holder that no index knows is ours: it can be written as it is.",
            like=writes(copied=lambda pool, block: True),
        ),
        Mistake(
            "copies-from-the-beginning",
            "Blocks before the first one written into are only read, and may stay shared: begin at page start // size.",
            like=writes(pages=lambda table, start: range(len(table))),
        ),
        Mistake(
            "first-page-missed",
            "Token start lies in page start // size, and that page is written into too: not rounded up, not plus one.",
            like=writes(pages=lambda table, start: range(-(-start // SIZE), len(table))),
        ),
        Mistake(
            "only-the-last-block",
            "Which blocks are written into depends on start, not on where the table ends.",
            like=writes(pages=lambda table, start: [len(table) - 1] if table else []),
        ),
        Mistake(
            "only-the-first-page",
            "Many tokens reach into several pages: each of them may be shared.",
            like=writes(pages=lambda table, start: range(len(table))[start // SIZE : start // SIZE + 1]),
        ),
        Mistake(
            "index-overlooked",
            "A block with one holder can be shared too: an index may hand it to the next prompt (pool.is_shared).",
            like=writes(copied=lambda pool, block: pool.refs[block] > 1),
        ),
        Mistake(
            "holders-overlooked",
            "A block is shared when several tables hold it, whether an index knows it or not (pool.is_shared).",
            like=writes(copied=lambda pool, block: block in pool.cached),
        ),
        Mistake(
            "index-forgets",
            "The index must keep what it knows, for the next prompt: leave it its block, and write into a copy.",
            like=without_copies,
        ),
        Mistake(
            "old-still-held",
            "The table points to the old block no longer: release it, or it is never given back.",
            like=writes(leave=lambda pool, block: None),
        ),
        Mistake(
            "taken-from-others",
            "Others still hold the old block: give up one hold (pool.release), not the block itself.",
            like=writes(leave=freed),
        ),
        Mistake(
            "taken-from-others",
            "Others still hold the old block: it is not free (pool.release does what is right).",
            like=writes(leave=lambda pool, block: pool.free.append(block)),
        ),
        Mistake(
            "table-not-changed",
            "The copy is made, but the table still points to the shared block: put the new one in its place.",
            like=writes(replace=False),
        ),
        Mistake(
            "table-not-changed",
            "The caller's table must change: table[page] = … and += write into it, table = table + … makes another.",
            like=on_a_copy,
        ),
        Mistake(
            "table-not-changed",
            "The caller's table must change, not a copy of it.",
            like=wholly_on_a_copy,
        ),
        Mistake(
            "copies-not-told",
            "Whoever owns the tensors has to copy what was in the old blocks: return the pairs (from, to).",
            like=writes(told=lambda old, own: []),
        ),
        Mistake("copies-reversed", "A pair is (from, to): the old block first, then our own.", when=pairs_reversed),
        Mistake(
            "no-new-blocks",
            "The tokens up to end need pool.blocks_for(end) blocks: the table has to grow to so many.",
            like=writes(lacking=lambda table, end: 0),
        ),
        Mistake(
            "one-block-too-few",
            "The last block may be partly full: 5 tokens in blocks of 4 take 2, so round up (pool.blocks_for).",
            like=writes(lacking=lambda table, end: end // SIZE - len(table)),
        ),
        Mistake(
            "one-block-too-many",
            "4 tokens in blocks of 4 take 1 block: the last token is number end - 1.",
            like=writes(lacking=lambda table, end: end // SIZE + 1 - len(table)),
        ),
        Mistake(
            "grows-by-the-new-tokens",
            "The last block may still have room: count the blocks for all tokens up to end, less those in the table.",
            like=lambda pool, table, start, end: writable(
                pool, table, start, end, lacking=lambda table, end: -(-(end - start) // SIZE)),
        ),
    ),
)

CHECKS = (COPY_ON_WRITE,)
