"""The scheduler: any schedule gives each request what it gets alone, and the pool is empty at the end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache.blocks import BlockPool
from minillm.cache.prefix import HashIndex
from minillm.cache.radix import RadixIndex
from minillm.cache.tables import BlockTables
from minillm.serving.scheduler import Scheduler, SchedulerConfig, split_budget
from tests.serving.shadow import Shadow, alone

INDEXES = {"hash": HashIndex, "radix": RadixIndex, "none": lambda pool: None}


def make(num_blocks: int = 64, block_size: int = 4, index: str = "hash", host_blocks: int = 0, **config) -> Shadow:
    pool = BlockPool(num_blocks, block_size)
    tables = BlockTables(pool, INDEXES[index](pool))
    how = "swap" if host_blocks else "recompute"
    return Shadow(Scheduler(tables, SchedulerConfig(preemption=how, **config), host_blocks))


def run(shadow: Shadow, limit: int = 3000) -> list:
    plans = []
    while shadow.scheduler.has_unfinished:
        plans.append(shadow.step())
        assert len(plans) < limit, "no end in sight"
    return plans


def empty(shadow: Shadow) -> bool:
    pool, host = shadow.scheduler.tables.pool, shadow.scheduler.host
    return pool.available == pool.num_blocks and (host is None or host.available == host.num_blocks)


# prompts over few tokens, in runs: many begin alike, so that blocks are shared
PROMPTS = st.builds(lambda start, rest: [1] * start + rest, st.integers(0, 12),
                    st.lists(st.integers(0, 1), min_size=1, max_size=14))
REQUESTS = st.lists(st.fixed_dictionaries({
    "arrives": st.integers(0, 12),
    "prompt": PROMPTS,
    "max_tokens": st.integers(1, 10),
    "n": st.sampled_from([1, 1, 1, 2, 3]),
    "aborted": st.none() | st.none() | st.integers(0, 15),
    "priority": st.integers(0, 2),
    "extra": st.sampled_from(["", "", "other"]),
}), min_size=1, max_size=9)
SETTINGS = st.fixed_dictionaries({
    "block_size": st.sampled_from([1, 2, 3, 4, 8]),
    "index": st.sampled_from(sorted(INDEXES)),
    "host_blocks": st.sampled_from([0, 0, 3, 40]),
    "max_num_seqs": st.integers(3, 6),
    "policy": st.sampled_from(["fcfs", "shortest-prompt", "priority"]),
    "watermark": st.sampled_from([0.0, 0.01, 0.3]),
    "chunk_size": st.none() | st.integers(1, 512),
})


def check_schedule(requests, setting, budget: int, spare: int) -> Shadow:
    """Run requests that arrive and are aborted at given steps, in a pool just large enough for the longest one."""
    longest = max(len(r["prompt"]) + r["max_tokens"] - 1 for r in requests)
    shadow = make(num_blocks=-(-longest // setting["block_size"]) + spare, **setting,
                  max_num_batched_tokens=max(budget, setting["max_num_seqs"]))
    ids, aborted, step = {}, set(), 0
    while step <= 12 or shadow.scheduler.has_unfinished:
        for number, r in enumerate(requests):
            if r["arrives"] == step:
                ids[number] = shadow.add(10 * number, r["prompt"], r["max_tokens"], r["n"], priority=r["priority"],
                                         extra=r["extra"])
            if r["aborted"] is not None and r["arrives"] + r["aborted"] == step:
                for seq_id in [i for i in ids[number] if i in shadow.scheduler.sequences]:
                    if seq_id in shadow.scheduler.sequences:  # an unborn answer goes with its parent
                        shadow.scheduler.abort(seq_id)
                        aborted.add(number)
        if shadow.scheduler.has_unfinished:
            shadow.step()
        step += 1
        assert step < 3000, "no end in sight"
    for number, r in enumerate(requests):
        for answer, seq_id in enumerate(ids[number]):
            if number not in aborted:
                assert shadow.results[seq_id] == alone(r["prompt"], answer, r["max_tokens"])
    assert empty(shadow)
    return shadow


@given(REQUESTS, SETTINGS, st.integers(1, 40), st.sampled_from([0, 0, 1, 2, 3, 6, 20]))
@settings(max_examples=1000)
def test_any_schedule_gives_what_each_request_gives_alone(requests, setting, budget, spare):
    check_schedule(requests, setting, budget, spare)


@pytest.mark.soak
@given(REQUESTS, SETTINGS, st.integers(1, 40), st.sampled_from([0, 0, 1, 2, 3, 6, 20]))
@settings(max_examples=20_000)
def test_thousands_of_schedules(requests, setting, budget, spare):
    check_schedule(requests, setting, budget, spare)


def test_split_budget_serves_decodes_first():
    assert split_budget([1, 9, 1, 4], 10) == [1, 8, 1, 0]
    assert split_budget([30, 1, 5], 10, chunk_size=4) == [4, 1, 4]
    assert split_budget([], 8) == []
