"""The engine on a real, tiny model in float64: any schedule gives each request exactly what it gives alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llm

from minillm.cache.errors import PoolExhausted
from minillm.decoding.sampling import SamplingParams
from minillm.serving.engine import StepRecord

PREFIXES = ["", "The same beginning of it all. ", "The same begin"]
REQUESTS = st.lists(st.fixed_dictionaries({
    "prefix": st.sampled_from(PREFIXES),
    "prompt": st.text("abc", min_size=1, max_size=12),
    "arrives": st.integers(0, 10),
    "aborted": st.none() | st.none() | st.integers(0, 12),
    "params": st.builds(
        SamplingParams, n=st.just(1), temperature=st.sampled_from([0, 0.7, 1.5]), top_p=st.sampled_from([1, 0.8]),
        repetition_penalty=st.sampled_from([1, 1.2]), seed=st.integers(0, 5), max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans()),
    "n": st.sampled_from([1, 1, 2]),
}), min_size=1, max_size=6)


def alone(text: str, params: SamplingParams, n: int) -> list[list[int]]:
    """Each answer from an LLM that has never seen anything else."""
    answers = []
    for i in range(n):
        own = SamplingParams(**{**vars(params), "seed": params.seed + i})
        answers.append(tiny_llm(enable_prefix_caching=False).generate(text, own)[0].outputs[0].token_ids)
    return answers


def blocks_in_use(llm) -> int:
    return llm.cache.pool.num_blocks - llm.cache.pool.available


def small_llm(blocks: int, **options):
    per_block = tiny_llm(max_num_seqs=1, block_size=options.get("block_size", 4)).cache
    return tiny_llm(kv_cache_memory_bytes=blocks * (per_block.bytes // per_block.pool.num_blocks), **options)


@given(REQUESTS, st.sampled_from([0, 1, 6, 200]), st.sampled_from(["hash", "radix"]), st.booleans(),
       st.integers(4, 40), st.sampled_from(["sdpa", "reference"]))
@settings(max_examples=60)
def test_any_schedule_gives_what_each_request_gives_alone(requests, spare, index, swap, budget, backend) -> None:
    longest = max(len(r["prefix"] + r["prompt"]) + r["params"].max_tokens for r in requests)
    swap_space = 10**6 if swap else 0
    llm = small_llm(-(-longest // 4) + spare, block_size=4, prefix_index=index, max_num_seqs=4, attention=backend,
                    max_num_batched_tokens=budget, swap_space_bytes=swap_space)
    under_way, aborted = {}, set()
    for step in range(500):
        for number, r in enumerate(requests):
            if r["arrives"] == step:
                params = SamplingParams(**{**vars(r["params"]), "n": r["n"] if r["params"].temperature else 1})
                under_way[number] = llm.request(r["prefix"] + r["prompt"], params)
                llm.engine.add(under_way[number])
            if r["aborted"] is not None and r["arrives"] + r["aborted"] == step and not under_way[number].finished:
                llm.engine.abort(under_way[number].request_id)
                aborted.add(number)
        if llm.engine.has_unfinished:
            llm.engine.step()
        elif step > 10:
            break
    for number, request in under_way.items():
        answers = [answer.token_ids for answer in request.answers]
        expected = alone(request.prompt, requests[number]["params"], len(answers))
        if number in aborted:
            expected = [tokens[: len(got)] for tokens, got in zip(expected, answers)]
            assert any(answer.finish_reason == "abort" for answer in request.answers)
        assert answers == expected
    assert blocks_in_use(llm) == 0 and not llm.cache.tables.tables and not llm.engine._answers


def test_preemption_by_recomputation_and_by_swapping_leaves_the_text_alone() -> None:
    prompts = [chr(97 + i) * 9 for i in range(5)]
    params = SamplingParams(temperature=0.9, seed=1, max_tokens=24, ignore_eos=True)
    expected = [alone(prompt, params, 1)[0] for prompt in prompts]
    for options in ({}, {"swap_space_bytes": 10**6}, {"prefix_index": "radix"}, {"max_num_batched_tokens": 16}):
        llm, records = small_llm(12, block_size=4, **options), []
        llm.engine.on_step = records.append
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
        assert any(record.preempted for record in records)
        stats = llm.cache.tables.stats
        assert stats.prompt_tokens == sum(map(len, prompts))  # each once; what is computed again stands apart
        assert (stats.again_tokens == 0) == ("swap_space_bytes" in options)


def test_a_long_prompt_does_not_stop_those_who_decode() -> None:
    """Stall-free: in every step of the newcomer's prefill the others get their token."""
    llm, records = tiny_llm(max_num_seqs=4, max_num_batched_tokens=8), []
    llm.engine.on_step = records.append
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    first = [llm.engine.add(llm.request(text, params))[0] for text in ("a", "b")]
    llm.engine.step()
    (late,) = llm.engine.add(llm.request("x" * 60, params))
    records.clear()
    while llm.engine.has_unfinished:
        llm.engine.step()
    chunks = [record for record in records if any(seq == late and count > 1 for seq, _, count in record.rows)]
    assert [next(count for seq, _, count in record.rows if seq == late) for record in chunks] == [6] * 10
    for record in chunks:
        assert {seq for seq, _, count in record.rows if count == 1} == set(first)
        assert record.tokens == 8


def test_records_say_what_happened() -> None:
    llm, records = tiny_llm(max_num_seqs=2), []
    llm.engine.on_step = records.append
    llm.generate(["abc", "defgh", "i"], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    assert [[count for _, _, count in record.rows] for record in records] == [[3, 5], [1, 1], [1, 1], [1], [1], [1]]
    assert [record.waiting for record in records] == [1, 1, 1, 0, 0, 0]
    assert [record.held for record in records] == [2, 2, 0, 1, 1, 0]
    assert all(isinstance(record, StepRecord) and record.start <= record.end for record in records)
    assert all(0 < record.forward <= record.seconds for record in records)
    assert all(before.end <= after.start for before, after in zip(records, records[1:]))


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on() -> None:
    llm = tiny_llm(max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    requests = [llm.request(text, params) for text in ("ab", "cd", "ef")]
    for request in requests:
        llm.engine.add(request)
    execute = llm.engine.executor.execute
    llm.engine.executor.execute = lambda plan: 1 / 0
    with pytest.raises(ZeroDivisionError):
        llm.engine.step()
    llm.engine.executor.execute = execute
    assert [request.finished for request in requests] == [True, True, False]
    assert requests[0].answers[0].finish_reason == "abort"
    while llm.engine.has_unfinished:
        llm.engine.step()
    assert requests[2].answers[0].token_ids == alone("ef", SamplingParams(**{**vars(params), "seed": 0}), 1)[0]
    assert blocks_in_use(llm) == 0


def test_a_step_that_fails_before_it_swaps_ends_those_it_swaps_out() -> None:
    """Their K and V are in no place that anybody could take them from: going on would give another text."""
    prompts, params = [chr(97 + i) * 9 for i in range(5)], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    llm = small_llm(12, block_size=4, swap_space_bytes=10**6)
    requests = [llm.request(prompt, params) for prompt in prompts]
    for request in requests:
        llm.engine.add(request)
    execute, failed = llm.engine.executor.execute, []

    def fail_at_the_first_swap(plan):
        if plan.swaps_out and not failed:
            failed.append(plan)
            raise ZeroDivisionError("once")
        return execute(plan)

    llm.engine.executor.execute = fail_at_the_first_swap
    ended_by_it = set()
    while llm.engine.has_unfinished:
        before = set(llm.engine.requests)
        try:
            llm.engine.step()
        except ZeroDivisionError:
            ended_by_it = before - set(llm.engine.requests)
    assert failed and ended_by_it < {request.request_id for request in requests}
    for request in requests:
        answer = request.answers[0]
        expected = tiny_llm().generate(request.prompt, params)[0].outputs[0].token_ids
        assert answer.token_ids == expected[: len(answer.token_ids)]
        assert (answer.finish_reason == "abort") == (request.request_id in ended_by_it)
    assert blocks_in_use(llm) == 0
    assert llm.engine.scheduler.host.available == llm.engine.scheduler.host.num_blocks


def test_aborts_and_ids_are_checked() -> None:
    llm = tiny_llm()
    request = llm.request("ab", SamplingParams(max_tokens=3), request_id="mine")
    with pytest.raises(ValueError, match="request 'mine' is not under way"):
        llm.engine.abort("mine")
    llm.engine.add(request)
    with pytest.raises(ValueError, match="request 'mine' is under way: expected a new id"):
        llm.engine.add(llm.request("cd", SamplingParams(), request_id="mine"))
    llm.engine.abort("mine")
    with pytest.raises(ValueError, match="not under way"):
        llm.engine.abort("mine")
    assert not llm.engine.has_unfinished and not llm.engine.scheduler.has_unfinished


def test_blocks_held_outside_the_engine_are_an_error_and_no_endless_loop() -> None:
    llm = small_llm(6, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    stream = llm.stream("x" * 12, params)
    text = "".join(next(stream).text for _ in range(4))
    with pytest.raises(PoolExhausted, match=r"none of the requests that wait \(1\) fits"):
        llm.generate("y" * 12, params)
    text += "".join(delta.text for delta in stream)
    assert text == tiny_llm().generate("x" * 12, params)[0].outputs[0].text
    assert blocks_in_use(llm) == 0 and not llm.engine.has_unfinished


def test_the_order_of_policies() -> None:
    """One at a time: the order in which requests end is the order of the line."""
    lengths = {"fcfs": [0, 1, 2, 3], "shortest-prompt": [3, 1, 0, 2], "priority": [2, 0, 1, 3]}
    for policy, expected in lengths.items():
        llm = tiny_llm(max_num_seqs=1, scheduling_policy=policy)
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        rng, ended = random.Random(0), []
        for text, priority in (("abc", 1), ("ab", 1), ("abcd", 0), ("a", 2)):
            llm.engine.add(llm.request(text, params, priority, request_id=str(len(ended) + rng.random())))
        names = list(llm.engine.requests)
        while llm.engine.has_unfinished:
            ended += [names.index(r.request_id) for r in llm.engine.step() if r.finished]
        assert ended == expected


def test_another_salt_shares_nothing() -> None:
    llm = tiny_llm()
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    hits = []
    for salt in ("a", "b", "a"):
        request = llm.request("x" * 40, params, cache_salt=salt)
        llm.engine.add(request)
        while llm.engine.has_unfinished:
            llm.engine.step()
        hits.append(request.num_cached_tokens)
    assert hits == [0, 0, 32]
