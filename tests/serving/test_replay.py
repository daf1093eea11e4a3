"""A workload on the real engine: same prompts, same steps and same hits as in the simulator."""

from __future__ import annotations

from tiny import tiny_llm

from minillm.decoding.sampling import SamplingParams
from minillm.measure import workload
from minillm.measure.workload import WorkItem, prompt_ids
from minillm.serving import simulator
from minillm.serving.replay import replay
from minillm.serving.scheduler import Scheduler, SchedulerConfig
from tests.serving.test_scheduler import make


def run(llm, items):
    return replay(items, llm.engine, lambda ids, item: llm.request(
        ids, SamplingParams(temperature=0, max_tokens=item.output_tokens, ignore_eos=True), item.priority), 200)


def test_the_simulator_takes_the_same_steps_as_the_engine() -> None:
    """All at once, so that no clock decides: rows, chunks, preemptions and hits are equal, step by step."""
    items = [WorkItem(0.0, 5 + 7 * i % 20, 3 + 5 * i % 17, prefix=i % 2 or None, prefix_tokens=20 * (i % 2))
             for i in range(12)]
    llm, records = tiny_llm(max_num_seqs=4, max_num_batched_tokens=16, block_size=4), []
    blocks = 16
    llm = tiny_llm(max_num_seqs=4, max_num_batched_tokens=16, block_size=4,
                   kv_cache_memory_bytes=blocks * llm.cache.bytes // llm.cache.pool.num_blocks)
    llm.engine.on_step = records.append
    found = run(llm, items)
    config = SchedulerConfig(4, 16)
    simulated = simulator.simulate(items, lambda: Scheduler(make(blocks, 4).scheduler.tables, config),
                                   lambda query_lens, context_lens: 1.0, vocab=200, record_steps=True)
    assert [[(seq - 1, *rest) for seq, *rest in record.rows] for record in records] == [
        [tuple(row) for row in record.rows] for record in simulated.records[0]]
    assert sum(len(record.preempted) for record in records) == simulated.preemptions > 0
    assert llm.cache.tables.stats.hit_tokens == simulated.hit_tokens
    assert [len(times.token_times) for times in found.times] == [item.output_tokens for item in items]


def test_a_conversation_goes_on_from_what_was_said() -> None:
    items = [WorkItem(0.0, 8, 6), WorkItem(0.01, 4, 5, follows=0), WorkItem(0.0, 3, 2)]
    llm = tiny_llm(block_size=4)
    found = run(llm, items)
    first, second = found.requests[0], found.requests[1]
    assert second.prompt_ids[:14] == [*first.prompt_ids, *first.answers[0].token_ids]
    assert second.prompt_ids == prompt_ids(1, items[1], 200, 0, second.prompt_ids[:14])
    assert second.num_cached_tokens == 12
    assert second.arrival >= first.answers[0].token_times[-1] + 0.01
    assert all(times.ttft > 0 for times in found.times)


def test_what_can_never_run_is_listed_and_the_rest_goes_on() -> None:
    found = run(tiny_llm(), [WorkItem(0.0, 500, 2), WorkItem(0.0, 5, 2), WorkItem(0.0, 2, 2, follows=0)])
    assert list(found.requests) == [1] and "prompt is 500 tokens" in found.refused[0]
    assert found.refused[2] == "item 0, which it follows, was refused"


def test_a_request_beyond_all_memory_is_refused_before_its_ids_are_made(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(workload, "prompt_ids", lambda place, *_: made.append(place) or [40] * 5)
    found = run(tiny_llm(), [WorkItem(0.0, 10**12, 2), WorkItem(0.0, 5, 2)])
    assert made == [1] and list(found.requests) == [1] and "expected at most 96" in found.refused[0]
