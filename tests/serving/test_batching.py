"""Static and dynamic batching: when a batch starts, and that each request still gets what it gets alone."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_llm

from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.sampling import SamplingParams
from minillm.serving import batching


def test_slot_efficiency_is_the_tokens_over_the_rectangle() -> None:
    assert batching.slot_efficiency([4, 4]) == 1.0
    assert batching.slot_efficiency([1, 1, 1, 5]) == 8 / 20
    assert batching.slot_efficiency([7]) == 1.0


@pytest.mark.parametrize(("arrivals", "free_at", "size", "timeout", "expected"), [
    ([0.0, 1.0, 2.0, 3.0], 0.0, 2, 10.0, (1.0, 2)),  # full before the timeout
    ([0.0, 5.0, 9.0], 0.0, 3, 2.0, (2.0, 1)),  # the first one's patience ends
    ([0.0, 2.0, 9.0], 0.0, 3, 2.0, (2.0, 2)),  # who comes at that moment is in
    ([0.0, 1.0, 2.0, 3.0], 2.5, 8, 1.0, (2.5, 3)),  # the machine is free later than that
    ([0.0, 0.0, 0.0], 0.0, 2, 1.0, (0.0, 2)),
    ([4.0], 1.0, 8, 0.0, (4.0, 1)),  # not before it came
])
def test_when_a_dynamic_batch_starts(arrivals, free_at, size, timeout, expected) -> None:
    assert batching.next_batch(arrivals, free_at, size, timeout) == expected


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 40), st.integers(1, 5), st.integers(0, 20))
def test_a_batch_starts_at_the_first_moment_that_allows_it(arrivals, free_at, size, timeout) -> None:
    """By trying every moment."""
    arrivals = sorted(arrivals)
    for now in range(100):
        there = sum(arrival <= now for arrival in arrivals)
        if now >= free_at and there and (there >= size or now >= arrivals[0] + timeout):
            break
    assert batching.next_batch(arrivals, free_at, size, timeout) == (now, min(there, size))


def serve(llm, lengths: list[int], max_size: int, timeout: float | None = None, gap: float = 0.0):
    start = time.perf_counter()
    requests = []
    for i, length in enumerate(lengths):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        requests.append(llm.request(f"{i} is the prompt"[: 4 + i % 5], params))
        requests[-1].arrival = start + gap * i
    records = []
    cache = ContiguousKVCache(llm.model.kv_specs(), max_size, 96, llm.model.dtype)
    batching.serve(llm.model, cache, requests, max_size, timeout, records.append)
    assert all(cache.length(seq) == 0 for seq in range(20))
    return requests, records


@pytest.mark.parametrize("timeout", [None, 0.0, 60.0])
def test_each_request_gets_what_it_gets_alone(timeout) -> None:
    requests, records = serve(tiny_llm(), [3, 9, 1, 5, 2, 4], 3, timeout)
    for request in requests:
        expected = tiny_llm().generate(request.prompt, request.params)[0].outputs[0]
        answer = request.answers[0]
        assert (answer.token_ids, answer.finish_reason) == (expected.token_ids, "length")
    assert len(records) == 9 + 5


@pytest.mark.parametrize("more", [{"logprobs": 1}, {"stop": "_z"}, {"temperature": 1, "seed": 3, "stop": "\x05"}])
def test_text_and_log_probabilities_end_where_the_answer_does(more) -> None:
    llm, requests = tiny_llm(), []
    for prompt, length in (("abc", 2), ("d", 12)):
        requests.append(llm.request(prompt, SamplingParams(
            **{"temperature": 0, "ignore_eos": True, "max_tokens": length, **more})))
    batching.serve(llm.model, ContiguousKVCache(llm.model.kv_specs(), 2, 96, llm.model.dtype), requests, 2)
    for request in requests:
        expected, found = tiny_llm().generate(request.prompt, request.params)[0].outputs[0], request.output().outputs[0]
        assert (found.text, found.token_ids, found.finish_reason) == (
            expected.text, expected.token_ids, expected.finish_reason)
        assert len(found.logprobs or ()) == len(expected.logprobs or ())


def test_an_error_leaves_the_cache_as_it_was() -> None:
    llm = tiny_llm()
    cache = ContiguousKVCache(llm.model.kv_specs(), 2, 96, llm.model.dtype)
    params = SamplingParams(temperature=0, max_tokens=4)
    with pytest.raises(ZeroDivisionError):
        batching.serve(llm.model, cache, [llm.request(text, params) for text in ("a", "b")], 2, None, lambda _: 1 / 0)
    batching.serve(llm.model, cache, [llm.request(text, params) for text in ("c", "d")], 2)


def test_a_static_batch_computes_every_row_to_the_end() -> None:
    _, records = serve(tiny_llm(), [1, 4, 2], 2)
    assert [[count for _, _, count in record.rows] for record in records] == [[4, 5], [1, 1], [1, 1], [1, 1], [6], [1]]
    assert [record.waiting for record in records] == [1, 1, 1, 1, 0, 0]


def test_static_batching_waits_for_a_full_batch_and_dynamic_batching_does_not() -> None:
    gap = 0.05
    requests, records = serve(tiny_llm(), [2, 2, 2], 3, None, gap)
    assert records[0].start >= requests[2].arrival
    requests, records = serve(tiny_llm(), [2, 2, 2], 3, 0.0, 10 * gap)
    assert len(records[0].rows) == 1 and records[0].start < requests[1].arrival


def test_bad_input_is_refused() -> None:
    llm = tiny_llm()
    for size, timeout, words in ((0, None, "max_size is 0"), (2, -1.0, "timeout is -1.0: expected seconds"),
                                 (2, float("inf"), "timeout is inf: expected seconds"),
                                 (1.5, None, "max_size is 1.5: expected a whole number"),
                                 (float("nan"), None, "max_size is nan"), ("2", None, "max_size is '2'"),
                                 (2, "1", "timeout is '1'"), (2, 1e300, "timeout is 1e\\+300: expected seconds")):
        with pytest.raises(ValueError, match=words):
            batching.serve(llm.model, llm.cache, [], size, timeout)
    with pytest.raises(ValueError, match="asks for 2 answers: expected 1"):
        batching.serve(llm.model, llm.cache, [llm.request("a", SamplingParams(n=2))], 2)
