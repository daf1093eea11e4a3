"""The pool's bookkeeping: any history keeps every block accounted for, and bad calls change nothing."""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter

import pytest
from invariants import check_pool

from minillm.cache import blocks
from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError, PoolExhausted


def state(pool: BlockPool) -> tuple:
    return copy.deepcopy((pool.refs, pool.free, list(pool.idle), pool.cached))


def random_operations(count: int, pool: BlockPool, check_every: int, seed: int = 0) -> Counter:
    """Random calls, good and bad; returns how many of each were carried out."""
    rng, done = random.Random(seed), Counter()
    held: list[int] = []  # one entry for each time a block is held
    for step in range(count):
        action = rng.choice(("allocate", "allocate", "share", "release", "release", "cache", "uncache", "bad"))
        if action == "allocate":
            wanted = rng.randint(1, 4)
            if wanted > pool.available:
                action = "refused"
                with pytest.raises(PoolExhausted):
                    pool.allocate(wanted)
            else:
                held += pool.allocate(wanted)
        elif action == "share" and held:
            block = rng.choice(held)
            pool.share([block])
            held.append(block)
        elif action == "release" and held:
            place = rng.randrange(len(held))
            held[place], held[-1] = held[-1], held[place]
            pool.release([held.pop()])
        elif action == "cache" and held:
            pool.cache(rng.choice(held))
        elif action == "uncache" and pool.idle:
            pool.uncache(next(iter(pool.idle)))
        elif action == "bad" and pool.free:
            with pytest.raises(CacheError):
                pool.release([pool.free[-1]])
        done[action] += 1
        if step % check_every == 0:
            check_pool(pool, Counter(held))
    check_pool(pool, Counter(held))
    return done


def test_random_operations_keep_the_books() -> None:
    done = random_operations(20_000, BlockPool(40), 50)
    assert min(done[a] for a in ("allocate", "share", "release", "cache", "uncache", "bad", "refused")) > 100, done


def test_a_million_random_operations_keep_the_books() -> None:
    random_operations(1_000_000, BlockPool(1000), 10_000)


def lines_run(call) -> int:
    """Lines of the pool's own module that a call executes: its cost, counted rather than timed."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename != blocks.__file__:
            return None  # the standard library's lines depend on what it has seen before
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_allocate_and_free_cost_the_same_in_a_small_and_in_a_huge_pool() -> None:
    costs = []
    for size in (1_000, 1_000_000):
        pool = BlockPool(size)
        blocks = pool.allocate(size)
        for block in blocks[: size // 2]:
            pool.cache(block)
        pool.release(blocks)  # half is free now, half idle
        cost = [lines_run(lambda pool=pool: pool.allocate(8))]
        taken = pool.allocate(len(pool.free))
        cost.append(lines_run(lambda pool=pool: pool.allocate(8)))  # all of these are evictions
        cost.append(lines_run(lambda pool=pool, taken=taken: pool.release(taken[:8])))
        cost.append(lines_run(lambda pool=pool, taken=taken: pool.share(taken[8:16])))
        costs.append(cost)
    assert costs[0] == costs[1]


def test_blocks_freed_last_are_taken_first_and_idle_ones_only_when_none_is_free() -> None:
    pool, evicted = BlockPool(4), []
    pool.on_evict = evicted.append
    a, b, c, d = pool.allocate(4)
    for block in (a, b):
        pool.cache(block)
    pool.release([c])
    pool.release([a, b])  # b lies deeper in the text: it goes first
    assert pool.available == 3
    assert pool.allocate() == [c] and evicted == []
    assert pool.allocate(2) == [b, a] and evicted == [b, a]
    assert pool.cached == set() and pool.available == 0
    assert pool.refs[d] == 1


def test_holding_an_idle_block_again_saves_it_from_eviction() -> None:
    pool = BlockPool(2)
    a, b = pool.allocate(2)
    pool.cache(a), pool.cache(b)
    pool.release([a]), pool.release([b])  # a is older
    pool.share([a])
    pool.release([a])
    assert pool.allocate() == [b]


def test_uncaching_an_idle_block_frees_it() -> None:
    pool = BlockPool(2)
    (a,) = pool.allocate()
    pool.cache(a)
    assert pool.is_shared(a)
    pool.release([a])
    pool.uncache(a)
    assert pool.free[-1] == a and not pool.idle and not pool.is_shared(a)


@pytest.mark.parametrize("call, words", [
    (lambda p, held, idle: p.allocate(4), "4 blocks asked for: expected at most 3"),
    (lambda p, held, idle: p.release([held, held]), "released 2 times: expected at most 1"),
    (lambda p, held, idle: p.release([idle]), "released 1 times: expected at most 0"),
    (lambda p, held, idle: p.release([held, 99]), "block 99 does not exist: expected 0 to 3"),
    (lambda p, held, idle: p.release([held, -1]), "block -1 does not exist"),
    (lambda p, held, idle: p.share([held, p.free[-1]]), "is free: expected one that is held or cached"),
    (lambda p, held, idle: p.share([held, 4]), "block 4 does not exist"),
    (lambda p, held, idle: p.share(["0"]), "block '0' does not exist"),
    (lambda p, held, idle: p.cache(idle), "is not held"),
    (lambda p, held, idle: p.uncache(held), "is not cached"),
])
def test_bad_calls_are_refused_and_change_nothing(call, words) -> None:
    pool = BlockPool(4)
    held, idle = pool.allocate(2)
    pool.cache(idle)
    pool.release([idle])
    before = state(pool)
    with pytest.raises(CacheError, match=words):
        call(pool, held, idle)
    assert state(pool) == before


@pytest.mark.parametrize("arguments, words", [
    ((0, 16), "num_blocks is 0: expected at least 1"),
    ((4, 0), "block_size is 0: expected at least 1"),
    ((4, -1), "block_size is -1"),
    ((4.5, 16), "num_blocks is 4.5"),
])
def test_bad_sizes_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        BlockPool(*arguments)
