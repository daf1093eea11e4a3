"""The checks of 2.5 and 2.8. A reader runs them with: minillm check 2.5"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from minillm.cache.blocks import BlockPool
from minillm.cache.prefix import HashIndex, hash_block
from minillm.course import hunts
from minillm.course.checks import Case, Check, Mistake, Outcome

SIZE = 2  # tokens of a block

# 2.5

Text = tuple[list[int], str]


def match_cases() -> list[Case]:
    def case(about: str, known: list[list[int]], token_ids: list[int], extra: str = "", known_extra: str = "",
             evicted: Sequence[int] = (), forged: Sequence[int] = ()) -> Case:
        args = {"known": known, "known_extra": known_extra, "token_ids": token_ids, "extra": extra,
                "evicted": list(evicted), "forged": list(forged)}
        return Case(about, args, described(**args))

    text = [1, 2, 3, 4]
    return [
        case("nothing is known", [], [1, 2, 3]),
        case("one block is known, one token more comes", [[1, 2]], [1, 2, 3]),
        case("shorter than a block", [[1, 2]], [1]),
        case("a prompt of one block, which is known", [[1, 2]], [1, 2]),
        case("two blocks are known, and nothing else comes", [text], text),
        case("two blocks are known, one token more comes", [text], [*text, 5]),
        case("the second block is another", [text], [1, 2, 8, 9, 5]),
        case("half of the second block agrees", [text], [1, 2, 3, 9, 5]),
        case("the same second block after another first one", [text], [8, 9, 3, 4, 5]),
        case("the first block comes second", [[1, 2]], [8, 9, 1, 2, 5]),
        case("the same block again and again", [[1, 2, 1, 2, 1, 2]], [1, 2, 1, 2, 1, 2, 5]),
        case("the known block comes twice", [[1, 2]], [1, 2, 1, 2, 5]),
        case("two texts that begin alike", [text, [1, 2, 5, 6]], [1, 2, 5, 6, 7]),
        case("known for another adapter", [text], [*text, 5], "adapter"),
        case("known for this adapter", [text], [*text, 5], "adapter", "adapter"),
        case("a block in the middle was evicted", [[1, 2, 3, 4, 5, 6]], [1, 2, 3, 4, 5, 6, 7], evicted=[1]),
        case("two texts with the same hash", [text], [*text, 5], forged=[1]),
    ]


def described(known: list[list[int]], known_extra: str, token_ids: list[int], extra: str, evicted: list[int],
              forged: list[int]) -> str:
    """The case in words; blocks are numbered in the order in which the texts were learned."""
    numbered, first = [], 0
    for text in known:
        count = len(text) // SIZE
        numbered.append(f"{text} in blocks {list(range(first, first + count))}")
        first += count
    shown = f"blocks of {SIZE} tokens; known: {' and '.join(numbered) or 'nothing'}"
    shown += f" with extra {known_extra!r}" if known_extra else ""
    shown += "".join(f"; block {block} was evicted" for block in evicted)
    shown += "".join(f"; block {block} holds other tokens, which happen to have that hash" for block in forged)
    return f"{shown}; token_ids={token_ids}" + (f", extra={extra!r}" if extra else "")


def use_index(cls: type, known: list[list[int]], known_extra: str, token_ids: list[int], extra: str,
              evicted: list[int], forged: list[int]) -> Any:
    """What match finds, and whether it left the holders of the blocks as they were."""
    pool = BlockPool(12, SIZE)
    index = cls(pool)
    for text in known:
        index.insert(text, pool.allocate(len(text) // SIZE), known_extra)
    for block in forged:
        entry = index.by_block[block]
        index.by_hash[entry.hash] = index.by_block[block] = replace(entry, token_ids=(0, 0))
    for block in evicted:
        index.evict(block)
    before = list(pool.refs)
    found = index.match(list(token_ids), extra)
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        return found
    return *found, "as before" if pool.refs == before else "changed"


def matcher(**switches: Any) -> type:
    return type("Wrong", (HashIndex,),
                {"match": lambda index, token_ids, extra="": match(index, token_ids, extra, **switches)})


def match(index: HashIndex, token_ids: Sequence[int], extra: str, *,
          end: Callable[[int], int] = lambda length: (length - 1) // SIZE * SIZE, chain: bool = True,
          with_extra: bool = True, compare: bool = True, after_a_miss: str = "stop", most: int = 99,
          share: bool = False, entries: bool = False) -> tuple[int, list]:
    """match with a switch for each mistake."""
    found, parent, extra = [], b"", extra if with_extra else ""
    for start in range(0, end(len(token_ids)), SIZE):
        page = tuple(token_ids[start : start + SIZE])
        name = hash_block(parent, page, extra)
        known = index._find(name, parent, page, extra) if compare else index.by_hash.get(name)
        if known is None and after_a_miss == "stop":
            break
        if known is not None:
            found.append(known)
        if chain and (known is not None or after_a_miss == "chain"):
            parent = name
    found = found[:most]
    blocks = [known.block for known in found]
    if share:
        index.pool.share(blocks)
    return len(found) * SIZE, found if entries else blocks


def result(change: Callable[[int, list[int], list[int]], tuple]) -> type:
    """The right match, but for how it is returned."""
    return type("Wrong", (HashIndex,),
                {"match": lambda index, token_ids, extra="": change(*match(index, token_ids, extra), token_ids)})


def all_but_one(index: HashIndex, token_ids: Sequence[int], extra: str = "") -> tuple[int, list[int]]:
    """Every known block taken, only the number of tokens is kept short."""
    n, blocks = match(index, token_ids, extra, end=lambda length: length // SIZE * SIZE)
    return min(n, len(token_ids) - 1), blocks


PREFIX = Check(
    "2.5",
    match_cases,
    call=use_index,
    names=("tokens", "blocks", "holders of the blocks"),
    mistakes=(
        Mistake(
            "no-chain",
            "K and V of a block depend on all tokens before it: its hash must contain the hash of the block before.",
            like=matcher(chain=False),
        ),
        Mistake(
            "goes-on-after-a-miss",
            "Without the block before, the ones behind are of no use: the chain ends at the first that is not known.",
            like=matcher(after_a_miss="chain"),
        ),
        Mistake(
            "goes-on-after-a-miss",
            "The chain ends at the first block that is not known: one further on stands after other tokens.",
            like=matcher(after_a_miss="go on"),
        ),
        Mistake(
            "last-token-taken",
            "The last token's logits choose the next one, so it must be computed: of 4 tokens in blocks of 2 only the "
            "first block may be taken.",
            like=matcher(end=lambda length: length // SIZE * SIZE),
        ),
        Mistake(
            "last-token-taken",
            "The block that holds the last token would be written into when that one is computed: leave the whole "
            "block out, not only one of its tokens.",
            like=type("Wrong", (HashIndex,), {"match": all_but_one}),
        ),
        Mistake(
            "one-block-too-few",
            "Only the last token must be left: with 5 tokens in blocks of 2, both full blocks may be taken.",
            like=matcher(end=lambda length: (length // SIZE - 1) * SIZE),
        ),
        Mistake(
            "only-the-first-block",
            "The chain goes on as long as blocks are known: does the function return inside its loop, or is a slice "
            "cut at block_size instead of start + block_size?",
            like=matcher(most=1),
        ),
        Mistake(
            "never-found",
            "No block is ever found. Is the page a tuple, as the index has it? Is the first one's parent b''?",
            like=matcher(most=0),
        ),
        Mistake(
            "extra-ignored",
            "Texts with different extra keys must not share: it belongs into the hash, and is compared.",
            like=matcher(with_extra=False),
        ),
        Mistake(
            "hash-believed",
            "Two texts may have one hash: compare the tokens as well, as self._find does.",
            like=matcher(compare=False),
        ),
        Mistake(
            "takes-hold",
            "match only looks. Whoever opens the sequence takes hold of the blocks; twice, and they never come back.",
            like=matcher(share=True),
        ),
        Mistake(
            "entries-not-blocks",
            "A table is made of block numbers: return the `block` of each entry.",
            like=matcher(entries=True),
        ),
        Mistake(
            "blocks-for-tokens",
            "The first value counts tokens: block_size for each block.",
            like=result(lambda n, blocks, token_ids: (len(blocks), blocks)),
        ),
        Mistake(
            "values-swapped",
            "The number of tokens comes first, then the blocks.",
            like=result(lambda n, blocks, token_ids: (blocks, n)),
        ),
    ),
)

# 2.8

FEWEST = "as few as can be"


def exposes(function: Callable[[], tuple[list[int], list[int]]]) -> tuple[str, str] | None:
    """In words, so that ours are not shown: whether the bug shows, and whether the prompts are the shortest."""
    prompts = function()
    if prompts is None:
        return None
    if (not isinstance(prompts, (list, tuple)) or len(prompts) != 2
            or not all(isinstance(p, (list, tuple)) and all(type(token) is int for token in p) for p in prompts)):
        raise ValueError(f"the prompts are {prompts!r}: expected two lists of token ids"[:150])
    earlier, later = map(list, prompts)
    reused = hunts.reused_with_a_bug(earlier, later)
    alike = next((i for i, (one, other) in enumerate(zip(earlier, later)) if one != other), min(map(len, prompts)))
    if reused != list(range(min(alike, len(later) - 1) // SIZE)):
        return "yes", FEWEST if len(earlier) + len(later) == 7 else "fewer will do"
    if reused:
        return "no, what is reused is right", "?"
    return "no, nothing is reused" if len(later) > SIZE else "no, the later one is too short to reuse anything", "?"


def came_is(part: int, text: str) -> Callable[[Sequence[Outcome]], bool]:
    return lambda outcomes: outcomes[0].came[part] == text


HUNT = Check(
    "2.8",
    lambda: [Case("your two prompts, in blocks of two tokens", {}, "what your function returns")],
    call=exposes,
    names=("the bug shows:", "tokens:"),
    mistakes=(
        Mistake(
            "too-short",
            "The last token is always computed: to reuse one block of two tokens, a prompt needs a third.",
            when=came_is(0, "no, the later one is too short to reuse anything"),
        ),
        Mistake(
            "nothing-reused",
            "The later prompt's first two tokens are no block of the earlier one, and there the search ends. Blocks "
            "begin at tokens 0, 2, 4, not in between.",
            when=came_is(0, "no, nothing is reused"),
        ),
        Mistake(
            "begin-alike",
            "These begin alike, and what is reused stands after the same tokens in both. It must stand after others.",
            when=came_is(0, "no, what is reused is right"),
        ),
        Mistake(
            "too-many-tokens",
            "The bug shows. Fewer tokens show it too: which of them does no block need?",
            when=came_is(1, "fewer will do"),
        ),
    ),
)

CHECKS = (PREFIX, HUNT)
