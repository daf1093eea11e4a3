"""The check of 2.2. A reader runs it with: minillm check 2.2"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError, PoolExhausted
from minillm.course.checks import Case, Check, Mistake, Outcome


def pool_case(about: str, function: str, refs: list[int], free: list[int], idle: Sequence[int] = (),
              cached_held: Sequence[int] = (), **call: Any) -> Case:
    """A pool in this state, and a call. `cached_held`: blocks that are held and known to an index."""
    args = {"refs": refs, "free": free, "idle": list(idle), "cached": sorted([*idle, *cached_held]), "call": call}
    state = f"refs {refs}, free {free}" + (f", idle {list(idle)} (longest ago first)" if idle else "")
    state += f", cached {args['cached']}" if args["cached"] else ""
    (value,) = call.values()
    return Case(about, args, f"a pool with {state}; {function}({value})", function)


def allocate_cases() -> list[Case]:
    def case(about: str, *state: Any, count: int, **more: Any) -> Case:
        return pool_case(about, "allocate", *state, count=count, **more)

    return [
        case("one block, two are free", [0, 0], [1, 0], count=1),
        case("two blocks, one is held by others", [0, 0, 1, 0], [3, 1, 0], count=2),
        case("none at all", [0, 0], [1, 0], count=0),
        case("nothing is free, one block is idle", [1, 0], [], [1], count=1),
        case("one block of three idle ones", [0, 0, 0, 1], [], [1, 2, 0], count=1),
        case("one is free, one is idle: one block", [0, 0], [1], [0], count=1),
        case("one is free, two are idle: two blocks", [0, 1, 0, 0], [2], [3, 0], count=2),
        case("another block is held and cached", [2, 0, 0], [], [2, 1], [0], count=1),
        case("all there are", [0, 0, 0], [1], [2, 0], count=3),
        case("two blocks, one is free", [1, 0], [1], count=2),
        case("three blocks, one is free and one idle", [0, 1, 0], [2], [0], count=3),
    ]


def release_cases() -> list[Case]:
    def case(about: str, *state: Any, blocks: list[int], **more: Any) -> Case:
        return pool_case(about, "release", *state, blocks=blocks, **more)

    return [
        case("one block with one holder", [1, 0], [1], blocks=[0]),
        case("a block that two tables hold", [2, 0], [1], blocks=[0]),
        case("two blocks, one of them shared", [1, 0, 2], [1], blocks=[2, 0]),
        case("a block that a prefix index knows", [1, 0], [1], (), [0], blocks=[0]),
        case("a block that two tables hold and an index knows", [2, 0], [1], (), [0], blocks=[0]),
        case("a table of three blocks that an index knows", [1, 1, 1], [], (), [0, 1, 2], blocks=[1, 2, 0]),
        case("another block is idle already", [1, 0, 1], [], [1], [0, 2], blocks=[0, 2]),
        case("known and unknown blocks", [1, 1, 2, 1], [], (), [3, 2], blocks=[3, 2, 1, 0]),
        case("both holders of one block in one call", [2, 0], [1], blocks=[0, 0]),
        case("a block that nobody holds", [1, 0], [1], blocks=[1]),
        case("the second block is held by nobody", [1, 0], [1], blocks=[0, 1]),
        case("one block twice, held once", [1, 1], [], blocks=[1, 0, 1]),
        case("an idle block", [0, 1], [], [0], blocks=[0]),
    ]


def pool_cases() -> list[Case]:
    return [*allocate_cases(), *release_cases()]


def use_pool(cls: type, refs: list[int], free: list[int], idle: list[int], cached: list[int],
             call: dict[str, Any]) -> tuple | None:
    """Make the call on a pool in this state; what came, what the index was told, and the books after it."""
    pool, evicted = cls(len(refs), 4), []
    pool.refs, pool.free, pool.cached = list(refs), list(free), set(cached)
    pool.idle.update(dict.fromkeys(idle))
    pool.on_evict = evicted.append
    if "blocks" in call:
        try:
            pool.release(list(call["blocks"]))
            came = "done"
        except CacheError:
            came = "refused"
        return came, list(pool.refs), sorted(pool.free), list(pool.idle), sorted(pool.cached), evicted
    try:
        blocks = pool.allocate(call["count"])
    except PoolExhausted:
        blocks = "refused"
    if blocks is None:
        return None
    came, books = handed_out(blocks, refs, free, pool)
    return came, books, f"{len(pool.free)} left", list(pool.idle), sorted(pool.cached), evicted


def handed_out(blocks: Any, refs: list[int], free: list[int], pool: BlockPool) -> tuple[Any, str]:
    """What was handed out, one free block being as good as another; and whether holders and free blocks agree with it.

    A tuple of blocks is taken for a list of them, and their order does not matter.
    """
    if isinstance(blocks, str):
        return blocks, "right" if pool.refs == refs else f"changed to {pool.refs}"
    if not isinstance(blocks, (list, tuple)) or not all(type(block) is int for block in blocks):
        return f"{blocks!r}, no list of blocks", "?"
    names = ["free" for block in blocks if block in free]
    names += sorted(f"block {block}" for block in blocks if block not in free)
    if len(set(blocks)) < len(blocks):
        return names, "one block twice"
    for block, (before, after) in enumerate(zip(refs, pool.refs)):
        if after != before + (block in blocks):
            return names, f"block {block} has {after}, not {before + (block in blocks)}"
    both = [block for block in blocks if block in pool.free]
    return names, f"block {both[0]} is handed out and still free" if both else "right"


def allocator(**switches: Any) -> type:
    return type("Wrong", (BlockPool,), {"allocate": lambda pool, count=1: allocate(pool, count, **switches)})


def allocate(pool: BlockPool, count: int, *, idle: bool = True, newest: bool = False, tell: str = "evicted",
             forget: bool = True, hold: int = 1, idle_first: bool = False) -> list[int]:
    """allocate with a switch for each mistake."""
    if count > (pool.available if idle else len(pool.free)):
        raise PoolExhausted("")
    blocks = []
    for _ in range(count):
        evict = not pool.free or (idle_first and len(pool.idle) > 0)
        block = pool.idle.popitem(last=newest)[0] if evict else pool.free.pop()
        if evict and forget:
            pool.cached.discard(block)
        if tell == "all" or (evict and tell == "evicted"):
            pool.on_evict(block)
        pool.refs[block] = hold
        blocks.append(block)
    return blocks


def only_looks(pool: BlockPool, count: int = 1) -> list[int]:
    if count > pool.available:
        raise PoolExhausted("")
    blocks = [*pool.free[::-1], *pool.idle][:count]
    for block in blocks:
        pool.refs[block] = 1
    return blocks


def last_of_list(pool: BlockPool, count: int = 1) -> list[int]:
    """free[-count:], which is all of it for a count of 0."""
    if count > pool.available:
        raise PoolExhausted("")
    while len(pool.free) < count:
        block = next(iter(pool.idle))
        pool.uncache(block)
        pool.on_evict(block)
    blocks = pool.free[-count:]
    del pool.free[-count:]
    for block in blocks:
        pool.refs[block] = 1
    return blocks


def releaser(**switches: Any) -> type:
    return type("Wrong", (BlockPool,), {"release": lambda pool, blocks: release(pool, blocks, **switches)})


def release(pool: BlockPool, blocks: Sequence[int], *, idle: bool = True, forget: bool = False,
            backwards: bool = True, front: bool = False, give: bool = True) -> None:
    """release with a switch for each mistake."""
    if any(pool.refs[block] < blocks.count(block) for block in blocks):
        raise CacheError("")
    for block in reversed(blocks) if backwards else blocks:
        pool.refs[block] -= 1
        if pool.refs[block] > 0 or not give:
            continue
        if block in pool.cached and idle:
            pool.idle[block] = None
            pool.idle.move_to_end(block, last=not front)
        else:
            pool.free.append(block)
        if forget:
            pool.cached.discard(block)


def must_be_refused(outcome: Outcome) -> bool:
    return outcome.expected[0] == "refused"


def not_refused(outcomes: Sequence[Outcome]) -> bool:
    """Only what must be refused went wrong: it was carried out, or stopped by another error."""
    wrong = [o for o in outcomes if not o.right]
    return all(must_be_refused(o) and (o.error is not None or o.came[0] != "refused") for o in wrong)


def half_done(outcomes: Sequence[Outcome]) -> bool:
    """Only what must be refused went wrong, and in part: refused it was, but not everywhere before a change."""
    wrong = [o for o in outcomes if not o.right]
    return all(must_be_refused(o) for o in wrong) and any(o.error is None and o.came[0] == "refused" for o in wrong)


def named_twice(outcomes: Sequence[Outcome]) -> bool:
    """Only what names one block twice, held once, went wrong: it was not refused."""
    wrong = [o for o in outcomes if not o.right]
    return all(must_be_refused(o) and o.came[0] == "done" and len(set(named(o))) < len(named(o)) for o in wrong)


def named(outcome: Outcome) -> list[int]:
    return outcome.case.args["call"]["blocks"]


def given_while_held(outcomes: Sequence[Outcome]) -> bool:
    """A block that others hold became free or idle, and only blocks with several holders went wrong."""
    wrong = [o for o in outcomes if not o.right and not must_be_refused(o)]
    return (any(wrong[0].expected[1][block] > 0 for block in [*wrong[0].came[2], *wrong[0].came[3]])
            and all(max(o.case.args["refs"][block] for block in named(o)) > 1 for o in wrong))


def index_emptied(outcomes: Sequence[Outcome]) -> bool:
    """Wherever something went wrong, no block is idle any more, and some should be."""
    return all(not must_be_refused(o) and o.expected[3] and not o.came[3] for o in outcomes if not o.right)


ALLOCATING = (
    Mistake(
        "not-refused",
        "More are asked for than can be had: that is PoolExhausted, not another error and not fewer blocks.",
        when=not_refused,
    ),
    Mistake(
        "refused-too-late",
        "A refusal must leave the pool as it was: compare count with self.available before you touch anything.",
        when=half_done,
    ),
    Mistake(
        "idle-not-used",
        "Idle blocks may be handed out too: nobody holds them, they are only remembered.",
        like=allocator(idle=False),
    ),
    Mistake(
        "evicts-the-newest",
        "The block that was held longest ago is the first of self.idle; popitem() takes the last.",
        like=allocator(newest=True),
    ),
    Mistake(
        "idle-before-free",
        "A free block's contents are worthless, an idle one's may be wanted again: free ones go first.",
        like=allocator(idle_first=True),
    ),
    Mistake(
        "evicts-too-many",
        "Evict only as many idle blocks as are needed: the others may be wanted again.",
        when=index_emptied,
    ),
    Mistake(
        "index-not-told",
        "The index still finds the evicted block, and would share what somebody else writes: call self.on_evict.",
        like=allocator(tell="nobody"),
    ),
    Mistake(
        "told-of-free-blocks",
        "A free block is in no index: on_evict is for idle ones only.",
        like=allocator(tell="all"),
    ),
    Mistake(
        "still-cached",
        "The index has been told to forget the block: it is cached no longer either.",
        like=allocator(forget=False),
    ),
    Mistake(
        "nobody-holds-it",
        "Whoever asked holds the blocks now: count one holder for each in self.refs.",
        like=allocator(hold=0),
    ),
    Mistake(
        "still-there",
        "What is handed out has to leave self.free and self.idle, or it is handed out again.",
        like=type("Wrong", (BlockPool,), {"allocate": only_looks}),
    ),
    Mistake(
        "none-is-all",
        "With a count of 0 the slice [-0:] is the whole list.",
        like=type("Wrong", (BlockPool,), {"allocate": last_of_list}),
    ),
)
RELEASING = (
    Mistake(
        "taken-from-others",
        "Others still hold that block: one holder fewer, and only the last one out gives it back.",
        when=given_while_held,
    ),
    Mistake(
        "never-given-back",
        "Nobody holds the block any more: it has to become free, or idle if an index knows it.",
        like=releaser(give=False),
    ),
    Mistake(
        "cached-goes-free",
        "A prefix index still knows what this block holds: it becomes idle, so that the next prompt finds it.",
        like=releaser(idle=False),
    ),
    Mistake(
        "forgotten",
        "An idle block is still cached: the index knows its contents until it is evicted.",
        like=releaser(forget=True),
    ),
    Mistake(
        "beginning-first",
        "A text is found from its beginning, so its end must be evicted first: give blocks up from the last one.",
        like=releaser(backwards=False),
    ),
    Mistake(
        "wrong-end",
        "What was held longest ago stands first in self.idle: a block given up now goes to its end.",
        like=releaser(front=True),
    ),
    Mistake(
        "named-twice",
        "One call may name a block twice: count how often, and compare that with its holders.",
        when=named_twice,
    ),
    Mistake(
        "not-refused",
        "A block that nobody holds cannot be released: that is a CacheError, or it would be handed out twice.",
        when=not_refused,
    ),
    Mistake(
        "refused-too-late",
        "A refusal must leave the pool as it was: look at all blocks before you touch the first.",
        when=half_done,
    ),
)

POOL = Check(
    "2.2",
    pool_cases,
    call=use_pool,
    names=("result", "holders", "free", "idle", "cached", "on_evict told"),
    mistakes=(
        *(replace(mistake, function="allocate") for mistake in ALLOCATING),
        *(replace(mistake, function="release") for mistake in RELEASING),
    ),
)

CHECKS = (POOL,)
