"""The simulator: a clock kept by hand, laws that hold for any system, the engine's own steps, and where requests go."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache import build
from minillm.cache.blocks import BlockPool
from minillm.cache.prefix import HashIndex
from minillm.cache.radix import RadixIndex
from minillm.cache.tables import BlockTables
from minillm.decoding.sampling import SamplingParams
from minillm.measure import metrics, workload
from minillm.measure.hardware import DATASHEETS
from minillm.measure.shape import KNOWN_SHAPES
from minillm.measure.workload import Lengths, WorkItem, make_workload
from minillm.serving.router import ROUTES, Router
from minillm.serving.scheduler import Scheduler, SchedulerConfig
from minillm.serving.simulator import Simulation, simulate
from minillm.serving.step_times import roofline_times
from tests.serving.test_scheduler import make
from tests.tiny import tiny_llm, tiny_model

INDEXES = {"hash": HashIndex, "radix": RadixIndex, "none": lambda pool: None}


class Fleet:
    """Makes schedulers and keeps them, to look at afterwards."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4, index: str = "none", host_blocks: int = 0,
                 **config) -> None:
        self.sizes, self.index, self.host_blocks = (num_blocks, block_size), index, host_blocks
        self.config = SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 16, **config})
        self.made: list[Scheduler] = []

    def __call__(self) -> Scheduler:
        pool = BlockPool(*self.sizes)
        self.made.append(Scheduler(BlockTables(pool, INDEXES[self.index](pool)), self.config, self.host_blocks))
        return self.made[-1]


def dyadic(query_lens, context_lens) -> float:
    """1 s a step, 1/4 s a new token, 1/1024 s a key: sums of these are exact in floating point."""
    return 1.0 + sum(query_lens) / 4 + sum(context_lens) / 1024


def by_tokens(query_lens, context_lens) -> float:
    return 1.0 + sum(query_lens) / 4


def exact_arrivals(items: list[WorkItem]) -> list[WorkItem]:
    """Rounded to 1/1024 s, for the same reason."""
    return [dataclasses.replace(item, arrival=round(item.arrival * 1024) / 1024) for item in items]


def seen(found: Simulation) -> dict[int, tuple[float, ...]]:
    return {place: found.times[place].token_times for place in sorted(found.times)}


def test_two_requests_by_hand() -> None:
    """0 to 2: four prompt tokens of the first. To 3.75: its decode, and the second's two prompt tokens. Then the
    second's decodes. The third comes when all is idle."""
    items = [WorkItem(0, 4, 2), WorkItem(0.5, 2, 3), WorkItem(10, 1, 1)]
    found = simulate(items, Fleet(), by_tokens, record_steps=True)
    assert seen(found) == {0: (2.0, 3.75), 1: (3.75, 5.0, 6.25), 2: (11.25,)}
    assert [found.times[place].arrival for place in range(3)] == [0.0, 0.5, 10.0]
    assert [found.times[place].prompt_tokens for place in range(3)] == [4, 2, 1]
    assert (found.steps, found.busy_seconds) == ([5], [7.5])
    assert found.request_seconds == 3.75 + 5.75 + 1.25
    assert [(r.start, r.end, r.rows) for r in found.records[0]] == [
        (0.0, 2.0, ((0, 0, 4),)), (2.0, 3.75, ((0, 4, 1), (1, 0, 2))), (3.75, 5.0, ((1, 2, 1),)),
        (5.0, 6.25, ((1, 3, 1),)), (10.0, 11.25, ((2, 0, 1),))]
    assert simulate(items, Fleet(), by_tokens).records == [[]]


def test_a_prompt_beyond_the_budget_takes_more_steps() -> None:
    """Six tokens with a budget of four: 2 s, then 1.5 s and the first token, then 1.25 s a token."""
    found = simulate([WorkItem(1, 6, 3)], Fleet(max_num_batched_tokens=4), by_tokens)
    assert seen(found) == {0: (4.5, 5.75, 7.0)}


def test_whoever_arrives_as_a_step_ends_is_in_the_next() -> None:
    found = simulate([WorkItem(0, 4, 2), WorkItem(2.0, 1, 1)], Fleet(), by_tokens)
    assert seen(found) == {0: (2.0, 3.5), 1: (3.5,)}


def test_a_follow_up_comes_after_thinking_with_the_whole_conversation_as_its_prompt() -> None:
    """The first ends at 4.5 with 4 + 3 tokens, of which 6 are computed: one full block of 4. The second's prompt is
    7 + 2 tokens, of which 4 are a hit; the third's is 9 + 2 + 1, of which 8 are."""
    items = [WorkItem(0, 4, 3), WorkItem(2.5, 2, 2, follows=0), WorkItem(0, 1, 1, follows=1)]
    found = simulate(items, Fleet(index="hash"), by_tokens)
    assert seen(found) == {0: (2.0, 3.25, 4.5), 1: (9.25, 10.5), 2: (12.5,)}
    assert [found.times[place].arrival for place in range(3)] == [0.0, 7.0, 10.5]
    assert [found.times[place].prompt_tokens for place in range(3)] == [4, 9, 12]
    assert (found.prompt_tokens, found.hit_tokens, found.hit_rate) == (25, 12, 12 / 25)
    plain = simulate(items, Fleet(), by_tokens)
    assert (plain.hit_tokens, plain.hit_rate) == (0, 0.0)
    assert plain.times[1].ttft == found.times[1].ttft + 4 / 4 and plain.times[2].ttft == found.times[2].ttft + 8 / 4


def test_shared_prefixes_hit_and_strangers_do_not() -> None:
    shared = [WorkItem(20 * n, 3, 1, prefix=n % 2, prefix_tokens=8) for n in range(6)]
    assert simulate(shared, Fleet(index="hash"), by_tokens).hit_tokens == 4 * 8
    strangers = [WorkItem(20 * n, 11, 9) for n in range(6)]
    assert simulate(strangers, Fleet(index="radix"), by_tokens).hit_tokens == 0


settings_of_a_fleet = st.fixed_dictionaries({
    "num_blocks": st.integers(10, 40), "index": st.sampled_from(sorted(INDEXES)),
    "host_blocks": st.sampled_from([0, 12]), "policy": st.sampled_from(["fcfs", "shortest-prompt", "priority"]),
    "max_num_batched_tokens": st.sampled_from([4, 7, 32])})


@settings(max_examples=80)
@given(settings_of_a_fleet, st.integers(0, 10**6), st.integers(1, 3), st.sampled_from(ROUTES), st.integers(1, 3))
def test_every_token_of_every_request_comes_and_the_pool_ends_empty(setting, seed, replicas, route, turns) -> None:
    """Also Little's law: requests in the system, integrated event by event, are the sum of their times in it."""
    if route == "prefix-aware" and setting["index"] == "none":
        setting = {**setting, "index": "hash"}
    fleet = Fleet(preemption="swap" if setting["host_blocks"] else "recompute", **setting)
    items = exact_arrivals(make_workload(12, rate=0.5, cv=2.0, prompt=Lengths(6, 1.0, 30), output=Lengths(4, 1.0, 20),
                                         prefixes=2, prefix_tokens=5, turns=turns, think=2.0, seed=seed))
    found = simulate(items, fleet, dyadic, replicas=replicas, route=route, context=80,
                     seconds_per_swapped_block=0.125, record_steps=True)
    assert sorted([*found.times, *found.refused]) == list(range(len(items)))
    for place, times in found.times.items():
        assert len(times.token_times) == items[place].output_tokens and times.token_times[0] > times.arrival
    for one in fleet.made:
        assert one.tables.pool.available == one.tables.pool.num_blocks and not one.has_unfinished
    assert found.request_seconds == sum(times.e2e for times in found.requests)
    assert found.preemptions == sum(len(one.preempted) for records in found.records for one in records)
    assert set(found.replica) == set(found.times) and set(found.replica.values()) <= set(range(replicas))


def test_littles_law_over_a_window_that_starts_and_ends_empty() -> None:
    """Mean number in the system = rate × mean time in it, with the number counted at every moment when it changes."""
    items = exact_arrivals(make_workload(60, rate=0.2, prompt=Lengths(8, 0.5, 30), output=Lengths(6, 0.5, 20)))
    found = simulate(items, Fleet(), dyadic)
    start, end = 0.0, max(times.token_times[-1] for times in found.requests)
    moments = sorted({start, end, *(t.arrival for t in found.requests), *(t.token_times[-1] for t in found.requests)})
    area = sum((later - now) * sum(t.arrival <= now < t.token_times[-1] for t in found.requests)
               for now, later in itertools.pairwise(moments))
    assert area == found.request_seconds > 0
    rate, mean_time = len(items) / (end - start), sum(t.e2e for t in found.requests) / len(items)
    assert found.request_seconds / (end - start) == pytest.approx(rate * mean_time, rel=1e-12)


def test_the_steps_are_those_of_the_engine() -> None:
    """A real engine with a tiny model takes the very same rows, step by step, preempting and hitting as often."""
    items = make_workload(24, prompt=Lengths(12, 0.8, 40), output=Lengths(10, 0.8, 40), prefixes=2, prefix_tokens=9)
    memory = 24 * build.block_bytes(tiny_model().kv_specs(), 4, dtype=torch.float64)
    llm = tiny_llm(max_num_seqs=4, max_num_batched_tokens=16, block_size=4, kv_cache_memory_bytes=memory)
    records = []
    llm.engine.on_step = records.append
    prompts = [workload.prompt_ids(place, item, 256) for place, item in enumerate(items)]
    outputs = llm.generate(prompts, [SamplingParams(max_tokens=i.output_tokens, ignore_eos=True) for i in items])
    assert [len(out.outputs[0].token_ids) for out in outputs] == [item.output_tokens for item in items]
    fleet = Fleet(llm.cache.pool.num_blocks, 4, "hash", max_num_seqs=4, max_num_batched_tokens=16)
    found = simulate(items, fleet, dyadic, vocab=256, record_steps=True)
    first = min(row[0] for record in records for row in record.rows)
    engine = [[(seq - first, start, count) for seq, start, count in record.rows] for record in records]
    assert engine == [list(record.rows) for record in found.records[0]]
    assert found.preemptions == sum(len(record.preempted) for record in records) > 0
    assert found.hit_tokens == sum(out.num_cached_tokens for out in outputs) > 0


def test_requests_that_can_never_run_are_refused_with_what_follows_them() -> None:
    """The pool holds 16 tokens; the last output token needs no room."""
    items = [WorkItem(0, 4, 2), WorkItem(0, 14, 4), WorkItem(1, 1, 1, follows=1), WorkItem(1, 1, 1, follows=2),
             WorkItem(0, 14, 3), WorkItem(0, 1, 1, follows=4), WorkItem(2, 1, 1, follows=1)]
    found = simulate(items, Fleet(num_blocks=4), by_tokens)
    assert set(found.times) == {0, 4} and set(found.refused) == {1, 2, 3, 5, 6}
    assert "needs 5 KV blocks" in found.refused[1] and "17 prompt tokens" not in found.refused[1]
    assert found.refused[2] == found.refused[6] == "item 1, which it follows, was refused"
    assert found.refused[3] == "item 2, which it follows, was refused"
    assert "18 prompt tokens" in found.refused[5]
    assert seen(simulate([items[0], items[4]], Fleet(num_blocks=4), by_tokens)) == {
        0: found.times[0].token_times, 1: found.times[4].token_times}
    assert set(simulate(items, Fleet(num_blocks=4), by_tokens, context=17).times) == {0, 4}
    short = simulate(items, Fleet(num_blocks=4), by_tokens, context=16)
    assert set(short.times) == {0} and "expected at most 16, the context" in short.refused[4]


def test_a_request_beyond_all_memory_is_refused_before_its_ids_are_made(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(workload, "prompt_ids", lambda place, *_: made.append(place) or [40] * 5)
    found = simulate([WorkItem(0.0, 10**12, 1), WorkItem(0.0, 5, 1)], lambda: make(8, 4).scheduler,
                     lambda query_lens, context_lens: 1.0)
    assert made == [1] and list(found.refused) == [0] and list(found.times) == [1]


def test_round_robin_takes_turns_and_replicas_do_not_disturb_each_other() -> None:
    items = exact_arrivals(make_workload(41, rate=1.0, prompt=Lengths(8, 0.5, 30), output=Lengths(6, 0.5, 20)))
    items.insert(7, WorkItem(items[7].arrival, 300, 1))  # refused: it takes no turn
    both = simulate(items, Fleet(), dyadic, replicas=2)
    taken = [place for place in range(42) if place != 7]
    assert [both.replica[place] for place in taken] == [n % 2 for n in range(41)] and set(both.refused) == {7}
    for replica in range(2):
        mine = [place for place in taken if both.replica[place] == replica]
        alone = simulate([items[place] for place in mine], Fleet(), dyadic)
        assert list(seen(alone).values()) == [both.times[place].token_times for place in mine]
        assert (alone.steps[0], alone.busy_seconds[0]) == (both.steps[replica], both.busy_seconds[replica])


def test_with_one_replica_every_route_is_the_same_and_the_same_call_gives_the_same() -> None:
    items = make_workload(40, rate=0.5, prefixes=3, prefix_tokens=6, turns=2, think=3.0, seed=4,
                          prompt=Lengths(8, 0.5, 30), output=Lengths(6, 0.5, 20))
    results = [simulate(items, Fleet(index="hash"), dyadic, route=route, context=120) for route in (*ROUTES, ROUTES[0])]
    assert all(result == results[0] for result in results) and results[0].hit_tokens > 0
    assert metrics.summarize(results[0].requests).requests == len(results[0].times)


def test_the_router_goes_where_least_is_outstanding() -> None:
    router = Router("least-loaded", [Fleet()() for _ in range(3)])
    router.sent(0, 10)
    assert router.choose([1]) == 1
    router.sent(1, 4)
    router.sent(2, 5)
    assert router.choose([1]) == 1
    router.sent(1, 4)
    assert router.choose([1]) == 2
    router.ended(0, 10)
    assert router.choose([1]) == 0 and router.loads == [0, 8, 5]


def test_what_has_ended_is_outstanding_no_more() -> None:
    """The first ends at 2.0, as the second comes: replica 0 is empty again. The third finds it taken."""
    items = [WorkItem(0, 4, 1), WorkItem(2.0, 4, 1), WorkItem(3.0, 4, 1), WorkItem(50, 4, 1), WorkItem(90, 4, 1)]
    found = simulate(items, Fleet(), by_tokens, replicas=2, route="least-loaded")
    assert [found.replica[place] for place in range(5)] == [0, 0, 1, 0, 0]


def test_least_loaded_spares_who_waits_behind_a_long_request() -> None:
    """Items 0, 2, 4, … are long: in turn, they all land on one replica.

    Loads, least-loaded: 44 and 0, 44 and 6, 44 and 50, 50 and 50 (item 1 ends at 5.25), and the first of equals.
    """
    items = [WorkItem(n, 4, 40 if n % 2 == 0 else 2) for n in range(12)]
    ends = {}
    for route in ("round-robin", "least-loaded"):
        found = simulate(items, Fleet(max_num_seqs=2), by_tokens, replicas=2, route=route)
        ends[route] = max(times.token_times[-1] for times in found.requests)
    assert found.replica[0] == 0 and [found.replica[n] for n in (1, 2, 3, 4)] == [1, 1, 0, 0]
    assert ends["least-loaded"] < 0.7 * ends["round-robin"]


def test_the_router_follows_the_longest_match_within_a_margin() -> None:
    fleet = Fleet(index="hash")
    items = [WorkItem(0, 1, 1, prefix=0, prefix_tokens=16), WorkItem(0, 1, 1, prefix=0, prefix_tokens=8)]
    prompt = workload.prompt_ids(5, items[0], 32000)
    simulate([items[1]], fleet, by_tokens)
    simulate([items[0]], fleet, by_tokens)
    router = Router("prefix-aware", [fleet(), *fleet.made[:2]], margin=20)
    assert router.choose([7] * 9) == 0 and router.choose(prompt) == 2
    router.sent(2, 20)
    assert router.choose(prompt) == 2
    router.sent(2, 1)
    assert router.choose(prompt) == 1
    for replica in (0, 1):
        router.sent(replica, 1)
    assert router.choose(prompt) == 2
    assert router.choose([7] * 9) == 0
    router.sent(0, 1)
    assert router.choose([7] * 9) == 1  # nobody knows it: the least loaded


def test_prefix_aware_routing_hits_more_than_turns() -> None:
    """Eight prefixes over four replicas that can keep about two each."""
    items = make_workload(120, rate=0.25, prompt=Lengths(4), output=Lengths(3), prefixes=8, prefix_tokens=64, seed=1)
    hits = {}
    for route in ROUTES:
        found = simulate(items, Fleet(num_blocks=48, index="hash"), dyadic, replicas=4, route=route)
        hits[route] = found.hit_rate
        assert len(found.times) == 120 and min(found.steps) > 0
    assert hits["prefix-aware"] > 2 * hits["round-robin"] and hits["prefix-aware"] > 2 * hits["least-loaded"]


def test_a_preempted_request_gets_all_its_tokens_later() -> None:
    items = [WorkItem(0, 8, 20), WorkItem(0, 8, 20)]
    tight, ample = (simulate(items, Fleet(num_blocks=n, watermark=0), by_tokens) for n in (8, 16))
    assert tight.preemptions >= 1 and ample.preemptions == 0
    assert tight.times[1].e2e > ample.times[1].e2e
    assert [len(times.token_times) for times in tight.requests] == [20, 20]


def test_swapped_blocks_take_their_time() -> None:
    moved = []

    class Watched(Scheduler):
        def schedule(self):
            plan = super().schedule()
            moved.append(len(plan.swaps_out) + len(plan.swaps_in))
            return plan

    def make() -> Scheduler:
        config = SchedulerConfig(4, 16, preemption="swap", watermark=0)
        return Watched(BlockTables(BlockPool(8, 4)), config, host_blocks=8)

    items = [WorkItem(0, 8, 20), WorkItem(0, 8, 20)]
    free = simulate(items, make, by_tokens)
    moved.clear()
    paid = simulate(items, make, by_tokens, seconds_per_swapped_block=0.5)
    assert sum(moved) > 0 and paid.busy_seconds[0] == free.busy_seconds[0] + 0.5 * sum(moved)


def test_priority_reaches_the_scheduler() -> None:
    items = [WorkItem(0, 4, 4, priority=2), WorkItem(0, 4, 4, priority=1), WorkItem(0, 4, 4, priority=0)]
    found = simulate(items, Fleet(max_num_seqs=1, policy="priority"), by_tokens)
    assert list(found.times) == [2, 1, 0]
    assert list(simulate(items, Fleet(max_num_seqs=1), by_tokens).times) == [0, 1, 2]


def test_more_bandwidth_is_never_slower_at_batch_one() -> None:
    items = make_workload(40, rate=2.0, seed=3)
    before = None
    for factor in (1, 1.5, 2, 4, 64):
        h200 = dataclasses.replace(DATASHEETS["h200"], bandwidth=DATASHEETS["h200"].bandwidth * factor)
        times = roofline_times(KNOWN_SHAPES["llama-3-8b"], h200, "bfloat16", overhead=1e-3)
        fleet = Fleet(num_blocks=1000, max_num_seqs=1, max_num_batched_tokens=512)
        tokens = [time for times in seen(simulate(items, fleet, times)).values() for time in times]
        if before is not None:
            assert all(now <= then for now, then in zip(tokens, before)) and sum(tokens) < sum(before)
        before = tokens


@pytest.mark.parametrize(("arguments", "words"), [
    ({"items": []}, "no items"), ({"items": [WorkItem(0, 1, 1, follows=0)]}, "item 0: follows is 0"),
    ({"replicas": 0}, "replicas is 0"), ({"route": "fastest"}, "route is 'fastest'"), ({"margin": -1}, "margin is -1"),
    ({"route": "prefix-aware"}, "expected replicas with a prefix index"),
    ({"step_time": lambda q, c: -1.0}, "step time is -1.0"), ({"step_time": lambda q, c: math.nan}, "step time is nan"),
    ({"step_time": lambda q, c: math.inf}, "step time is inf"), ({"vocab": 7}, "vocab is 7"),
    ({"seconds_per_swapped_block": -1}, "seconds_per_swapped_block is -1"),
    ({"seconds_per_swapped_block": "1"}, "seconds_per_swapped_block is '1'"),
    ({"replicas": 1.5}, "replicas is 1.5: expected a whole number, at least 1"),
    ({"replicas": None}, "replicas is None"),
    ({"margin": math.nan}, "margin is nan: expected a whole number"), ({"margin": "9"}, "margin is '9'"),
    ({"context": 0}, "context is 0"), ({"context": "9"}, "context is '9'"), ({"vocab": 1e9}, "vocab is 1000000000.0")])
def test_a_simulation_that_makes_no_sense_is_refused(arguments, words) -> None:
    usual = {"items": [WorkItem(0, 1, 1)], "make_scheduler": Fleet(), "step_time": by_tokens}
    with pytest.raises(ValueError, match=words):
        simulate(**{**usual, **arguments})


def test_a_router_of_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no replicas"):
        Router("round-robin", [])
