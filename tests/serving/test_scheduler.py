"""The scheduler: any schedule gives each request what it gets alone, and the pool is empty at the end."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache import build
from minillm.serving.scheduler import Scheduler, SchedulerConfig, Sequence, split_budget
from tests.serving.shadow import Shadow, alone


def make(num_blocks: int = 64, block_size: int = 4, index: str = "hash", host_blocks: int = 0, **config) -> Shadow:
    tables = build.block_tables(num_blocks, block_size, index)
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
    "index": st.sampled_from(build.PREFIX_INDEXES),
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


def test_decodes_come_first_and_prompts_share_what_they_leave() -> None:
    shadow = make(max_num_seqs=4, max_num_batched_tokens=8)
    shadow.add(0, [1, 2], 9)
    shadow.step()
    shadow.add(1, [3] * 10, 2)
    shadow.add(2, [4] * 10, 2)
    sizes = [{row.seq_id: len(row.token_ids) for row in shadow.step().rows} for _ in range(3)]
    assert sizes == [{0: 1, 1: 7}, {0: 1, 1: 3, 2: 4}, {0: 1, 1: 1, 2: 6}]


def test_a_prompt_starts_from_what_another_one_left() -> None:
    shadow = make(index="hash", block_size=4)
    shadow.add(0, [5] * 9, 1)
    run(shadow)
    shadow.add(1, [5] * 9 + [6], 1)
    (plan,) = run(shadow)
    assert [(row.start, len(row.token_ids)) for row in plan.rows] == [(8, 2)]


@pytest.mark.parametrize(("policy", "expected"), [
    ("fcfs", [0, 1, 2, 3]), ("shortest-prompt", [3, 1, 0, 2]), ("priority", [2, 0, 1, 3])])
def test_policies_decide_who_goes_first(policy, expected) -> None:
    shadow = make(max_num_seqs=1, policy=policy)
    for seq_id, (prompt, priority) in enumerate((([1] * 3, 1), ([1] * 2, 1), ([1] * 4, 0), ([1], 2))):
        shadow.add(seq_id, prompt, 2, priority=priority)
    run(shadow)
    assert list(shadow.results) == expected


def test_nobody_overtakes_while_the_first_in_line_does_not_fit() -> None:
    shadow = make(num_blocks=5, block_size=4, watermark=0)
    shadow.add(0, [1] * 7, 4)  # takes two blocks, then three
    shadow.add(1, [2] * 15, 1)  # needs four
    shadow.add(2, [3], 1)  # would fit at once
    run(shadow)
    assert list(shadow.results) == [0, 1, 2]


def test_the_watermark_leaves_blocks_for_those_who_run() -> None:
    for watermark, starts in ((0.0, 2), (0.4, 1)):
        shadow = make(num_blocks=10, block_size=4, watermark=watermark)
        shadow.add(0, [1] * 15, 8)
        shadow.add(1, [2] * 15, 8)
        assert len(shadow.step().rows) == starts


def test_what_a_running_prompt_still_needs_is_not_given_away() -> None:
    shadow = make(num_blocks=8, block_size=4, watermark=0, max_num_seqs=3, max_num_batched_tokens=8, chunk_size=4)
    shadow.add(0, [1] * 24, 1)  # six blocks in the end, one after its first chunk
    shadow.add(1, [2] * 12, 1)  # three
    plans = run(shadow)
    assert [row.seq_id for row in plans[0].rows] == [0]
    assert not any(plan.preempted for plan in plans)


def test_the_last_in_line_is_preempted_and_comes_back_first() -> None:
    shadow = make(num_blocks=6, block_size=2, watermark=0, max_num_seqs=3)
    for seq_id in range(3):
        shadow.add(seq_id, [seq_id] * 2, 8)
    shadow.add(3, [9], 1)
    plans = run(shadow)
    preempted = [seq_id for plan in plans for seq_id in plan.preempted]
    assert preempted and 0 not in preempted  # the first in line never
    sent_back = next(place for place, plan in enumerate(plans) if 2 in plan.preempted)
    back, newcomer = (next(place for place, plan in enumerate(plans) if place > sent_back and seq_id in
                           [row.seq_id for row in plan.rows]) for seq_id in (2, 3))
    assert back <= newcomer  # who never ran waits behind those that were sent back


def test_swapping_computes_no_token_twice_and_recomputing_does() -> None:
    computed = {}
    for host_blocks in (0, 40):
        shadow = make(num_blocks=6, block_size=2, index="none", host_blocks=host_blocks)
        for seq_id in range(3):
            shadow.add(seq_id, [seq_id] * 3, 7)
        plans = run(shadow)
        computed[host_blocks] = sum(plan.num_tokens for plan in plans)
        assert bool(host_blocks) == any(plan.swaps_in for plan in plans)
    assert computed[40] == 3 * (3 + 7 - 1) < computed[0]


def test_a_host_without_room_means_recomputing() -> None:
    shadow = make(num_blocks=6, block_size=2, host_blocks=1)
    for seq_id in range(3):
        shadow.add(seq_id, [seq_id] * 3, 7)
    run(shadow)
    assert shadow.results == {i: alone([i] * 3, 0, 7) for i in range(3)} and empty(shadow)


def lines_of_a_step(waiting: int) -> int:
    """Lines of Python that one step takes, with so many in the line; as good as a clock, and the same every time."""
    shadow = make(num_blocks=4000, max_num_seqs=8, max_num_batched_tokens=64)
    for seq_id in range(waiting + 8):
        shadow.scheduler.add(Sequence(seq_id, [1, 2, 3], 2))
    scheduler, lines = shadow.scheduler, 0

    def count(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return count

    for _ in range(2):  # admit eight, then let them end, so that a third step admits again
        plan = scheduler.schedule()
        ended = [row.seq_id for row in plan.rows if len(scheduler.sequences[row.seq_id].token_ids) == 4]
        scheduler.update(plan, {row.seq_id: [0] for row in plan.rows}, ended)
    sys.settrace(count)
    plan = scheduler.schedule()
    scheduler.update(plan, {row.seq_id: [0] for row in plan.rows})
    sys.settrace(None)
    assert len(plan.rows) == 8
    return lines


def test_a_step_costs_the_same_however_many_wait() -> None:
    assert lines_of_a_step(10_000) <= 1.2 * lines_of_a_step(10)  # the heap is deeper, by ten comparisons a request


def test_requests_that_could_never_run_are_refused_and_nothing_changes() -> None:
    shadow = make(num_blocks=4, block_size=4, max_num_seqs=3)
    scheduler = shadow.scheduler
    scheduler.add(Sequence(1, [1], 1))
    for seq, words in (
        (Sequence(2, [1] * 10, 8), "request needs 5 KV blocks for 10 prompt tokens and 8 new ones: expected at most 4"),
        (Sequence(2, [], 8), "sequence 2 has no tokens"),
        (Sequence(1, [1], 1), "sequence 1 is there already: expected a new id"),
        (Sequence(2, [1], 1, forks=[Sequence(1, [1], 1)]), "sequence 1 is there already"),
        (Sequence(2, [1], 1, forks=[Sequence(i, [1], 1) for i in (3, 4, 5)]), "n is 4: expected at most max_num_seqs"),
    ):
        with pytest.raises(ValueError, match=words):
            scheduler.add(seq)
        assert set(scheduler.sequences) == {1} and scheduler.num_waiting == 1
    scheduler.add(Sequence(2, [1] * 10, 7))  # the last token's K and V are never written
    with pytest.raises(ValueError, match="sequence 9 is not under way"):
        scheduler.abort(9)


@pytest.mark.parametrize(("setting", "words"), [
    ({"max_num_seqs": 0}, "max_num_seqs is 0: expected at least 1"),
    ({"max_num_batched_tokens": -5}, "max_num_batched_tokens is -5: expected at least 1"),
    ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "expected at least max_num_seqs"),
    ({"chunk_size": 0}, "chunk_size is 0"), ({"policy": "lifo"}, "policy is 'lifo': expected one of fcfs, shortest"),
    ({"preemption": "hope"}, "preemption is 'hope': expected one of recompute, swap"),
    ({"watermark": 1.0}, "watermark is 1.0: expected 0 to less than 1"), ({"max_num_seqs": True}, "max_num_seqs is")])
def test_bad_settings_are_refused(setting, words) -> None:
    with pytest.raises(ValueError, match=words):
        SchedulerConfig(**setting)


def test_swapping_needs_host_blocks_and_nothing_else_does() -> None:
    tables = make().scheduler.tables
    with pytest.raises(ValueError, match="host_blocks is 0 with preemption 'swap': expected some"):
        Scheduler(tables, SchedulerConfig(preemption="swap"))
    with pytest.raises(ValueError, match="host_blocks is 3 with preemption 'recompute'"):
        Scheduler(tables, SchedulerConfig(), 3)
