"""Sampling by its definitions: filters as properties, the law of a draw against exact probabilities, bad parameters."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.decoding import sampling
from minillm.decoding.sampling import RequestSampler, SamplingParams

rows = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40)


def kept(filtered: torch.Tensor) -> set[int]:
    return set(torch.isfinite(filtered[0]).nonzero().flatten().tolist())


@given(rows, st.floats(0.001, 1.0))
def test_top_p_keeps_the_smallest_set_that_reaches_p(row, top_p) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    filtered = sampling.top_p_filter(logits, top_p)
    nucleus = kept(filtered)
    probabilities = logits[0].softmax(-1)
    assert nucleus
    inside = probabilities[sorted(nucleus)]
    assert float(inside.sum()) >= top_p - 1e-9
    assert float(inside.sum() - inside.min()) < top_p + 1e-9  # without its least likely it would not reach p
    outside = [float(p) for i, p in enumerate(probabilities) if i not in nucleus]
    assert all(p <= float(inside.min()) for p in outside)
    assert torch.equal(filtered[0][sorted(nucleus)], logits[0][sorted(nucleus)])


def test_top_p_works_row_by_row_in_the_order_of_the_vocabulary() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], dtype=torch.float64)
    filtered = sampling.top_p_filter(probabilities.log(), 0.7)
    assert torch.isfinite(filtered).tolist() == [[False, True, True], [True, False, True]]


def test_top_p_keeps_one_token_however_small_p_is() -> None:
    assert kept(sampling.top_p_filter(torch.tensor([[1.0, 3.0, 2.0]]), 1e-9)) == {1}


@given(rows, st.integers(1, 50))
def test_top_k_keeps_the_k_largest_and_their_equals(row, k) -> None:
    filtered = sampling.top_k_filter(torch.tensor([row], dtype=torch.float64), k)
    least = sorted(row, reverse=True)[min(k, len(row)) - 1]
    assert kept(filtered) == {i for i, value in enumerate(row) if value >= least}


@given(rows, st.floats(0.01, 1.0))
def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest(row, min_p) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    nucleus = kept(sampling.min_p_filter(logits, min_p))
    relative = (logits[0] - logits.max()).exp()
    assert int(logits[0].argmax()) in nucleus
    for i, value in enumerate(relative.tolist()):
        if abs(value - min_p) > 1e-9:
            assert (i in nucleus) == (value > min_p)


@given(rows, st.data())
def test_penalties_are_those_of_the_slow_definition(row, data) -> None:
    ids = st.lists(st.integers(0, len(row) - 1), max_size=12)
    prompt, output = data.draw(ids), data.draw(ids)
    params = SamplingParams(repetition_penalty=data.draw(st.floats(0.5, 2)),
                            frequency_penalty=data.draw(st.floats(-2, 2)), presence_penalty=data.draw(st.floats(-2, 2)))
    expected = []
    for token, value in enumerate(row):
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty * (token in output)
        expected.append(value)
    logits = torch.tensor(row, dtype=torch.float64)
    got = sampling.apply_penalties(logits, prompt, output, params)
    assert got.tolist() == pytest.approx(expected)
    assert logits.tolist() == row


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert sampling.greedy(torch.tensor([[1.0, 5.0, 5.0], [7.0, 7.0, 7.0]])).tolist() == [1, 0]


@given(rows, st.integers(0, 2**32), st.floats(0.1, 1), st.integers(1, 9), st.floats(0, 1))
@settings(max_examples=30)
def test_temperature_0_is_greedy_whatever_else_is_asked(row, seed, top_p, top_k, min_p) -> None:
    params = SamplingParams(temperature=0, seed=seed, top_p=top_p, top_k=top_k, min_p=min_p)
    logits = torch.tensor([row])
    assert sampling.sample(logits, [RequestSampler(params, [])]) == sampling.greedy(logits).tolist()


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.7, seed=1), SamplingParams(temperature=1.5, top_p=0.8, seed=2),
    SamplingParams(top_k=3, seed=3), SamplingParams(min_p=0.2, seed=4),
    SamplingParams(temperature=0.9, top_k=4, top_p=0.9, min_p=0.05, repetition_penalty=1.3, seed=5)])
def test_draws_follow_the_exact_law(params) -> None:
    """Chi-square of 4,000 draws against the probabilities written out in plain Python; a fixed seed, so no flake."""
    row = [2.0, 1.5, 1.0, 0.0, -1.0, -3.0]
    prompt = [0, 3]
    penalized = [(v / params.repetition_penalty if v > 0 else v * params.repetition_penalty) if i in prompt else v
                 for i, v in enumerate(row)]
    scaled = [v / params.temperature for v in penalized]
    alive = [i for i, v in enumerate(scaled) if math.exp(v - max(scaled)) >= params.min_p]
    alive = sorted(alive, key=lambda i: -scaled[i])[: params.top_k or None]
    total = sum(math.exp(scaled[i]) for i in alive)
    law, mass = {}, 0.0
    for i in alive:
        if mass < params.top_p:
            law[i] = math.exp(scaled[i]) / total
            mass += law[i]
    law = {i: p / mass for i, p in law.items()}
    sampler = RequestSampler(params, prompt)
    counts = dict.fromkeys(range(6), 0)
    for _ in range(4000):
        sampler.output_ids.clear()
        counts[sampling.sample(torch.tensor([row]), [sampler])[0]] += 1
    assert {i for i, n in counts.items() if n} <= set(law)
    chi_square = sum((counts[i] - 4000 * p) ** 2 / (4000 * p) for i, p in law.items())
    assert chi_square < 20  # 5 degrees of freedom at most: exceeded once in 800 honest runs


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda p: sum(p) > 1e-3),
       st.floats(0, 1, exclude_max=True))
def test_a_draw_never_takes_what_cannot_be(weights, uniform) -> None:
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    assert probabilities[sampling.draw(probabilities, uniform)] > 0
    assert probabilities[sampling.draw(probabilities, 1.0)] > 0


def test_one_seed_gives_the_same_tokens_beside_any_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(12, 3, 50, generator=generator)
    mine = SamplingParams(seed=7, top_p=0.9)
    alone = RequestSampler(mine, [])
    expected = [sampling.sample(step[1:2], [alone])[0] for step in steps]
    group = [RequestSampler(params, []) for params in (SamplingParams(seed=1), mine, SamplingParams(temperature=0))]
    assert [sampling.sample(step, group)[1] for step in steps] == expected
    other = RequestSampler(SamplingParams(seed=8, top_p=0.9), [])
    assert [sampling.sample(step[1:2], [other])[0] for step in steps] != expected


@given(st.integers(0, 2**32), st.integers(2, 400), st.floats(0.01, 1, exclude_max=True), st.booleans())
def test_sorting_only_what_can_be_in_the_nucleus_changes_nothing(seed, vocab, top_p, ties) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 4
    if ties:
        logits = logits.round()
    ids, few = sampling.nucleus(logits, logits.softmax(-1), top_p)
    whole = torch.full_like(logits, -math.inf)
    whole[ids] = few
    assert torch.equal(whole, sampling.top_p_filter(logits[None], top_p)[0])


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=50)
def test_many_rows_at_once_give_what_each_gives_by_itself(seed, rows) -> None:
    """Greedy, penalized, and filtered in every way, side by side."""
    rng = random.Random(seed)
    logits = torch.randn(rows, 60, generator=torch.Generator().manual_seed(seed))
    params = [SamplingParams(temperature=rng.choice([0, 0.7, 1, 2]), top_p=rng.choice([1, 0.5, 0.9]),
                             top_k=rng.choice([0, 1, 5, 100]), min_p=rng.choice([0, 0.1]), seed=rng.randrange(99),
                             repetition_penalty=rng.choice([1, 1.3]), presence_penalty=rng.choice([0, 1]),
                             logprobs=rng.choice([None, 2])) for _ in range(rows)]
    together, apart = ([RequestSampler(p, [1, 2], [3]) for p in params] for _ in range(2))
    for _ in range(3):
        alone = [sampling.sample(logits[row : row + 1], [one])[0] for row, one in enumerate(apart)]
        assert sampling.sample(logits, together) == alone
    assert [one.logprobs for one in together] == [one.logprobs for one in apart]


def test_without_a_seed_two_requests_differ() -> None:
    logits = torch.zeros(1, 1000)
    draws = [[sampling.sample(logits, [sampler])[0] for _ in range(8)] for sampler in
             (RequestSampler(SamplingParams(), []), RequestSampler(SamplingParams(), []))]
    assert draws[0] != draws[1]


def test_logprobs_are_of_the_model_before_any_sampling_parameter() -> None:
    row = torch.tensor([2.0, 1.0, 0.0, -1.0])
    raw = row.double().log_softmax(-1)
    params = SamplingParams(temperature=3.0, top_k=1, repetition_penalty=2.0, logprobs=2, seed=0)
    sampler = RequestSampler(params, [0])
    (token,) = sampling.sample(row[None], [sampler])
    (entry,) = sampler.logprobs
    assert {token, 0, 1} == set(entry)
    for i, logprob in entry.items():
        assert logprob.logprob == pytest.approx(float(raw[i]))
        assert logprob.rank == i + 1
    greedy = RequestSampler(SamplingParams(temperature=0, logprobs=0), [])
    assert sampling.sample(row[None], [greedy]) == [0]
    assert set(greedy.logprobs[0]) == {0}


@pytest.mark.parametrize(("arguments", "words"), [
    ({"temperature": -0.1}, "temperature is -0.1: expected 0"), ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": math.inf}, "temperature is inf"),
    ({"top_p": 0.0}, "top_p is 0.0: expected more than 0, at most 1"), ({"top_p": 1.01}, "top_p is 1.01"),
    ({"top_k": -2}, "top_k is -2"), ({"min_p": 1.5}, "min_p is 1.5: expected 0 to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0"), ({"frequency_penalty": 2.1}, "frequency_penalty is 2.1"),
    ({"presence_penalty": -3}, "presence_penalty is -3: expected -2 to 2"),
    ({"max_tokens": 0}, "max_tokens is 0: expected at least 1"), ({"logprobs": -1}, "logprobs is -1"),
    ({"stop": ["a", ""]}, "stop is"), ({"seed": 2**63}, "seed is"), ({"seed": 1.5}, "seed is 1.5"),
    ({"temperature": "x"}, "temperature is 'x'"), ({"top_p": None}, "top_p is None"), ({"top_k": "x"}, "top_k is 'x'"),
    ({"top_k": 1.5}, "top_k is 1.5"), ({"max_tokens": 1.5}, "max_tokens is 1.5"), ({"max_tokens": True}, "max_tokens"),
    ({"stop": 5}, "stop is"), ({"stop_token_ids": ["a"]}, "stop_token_ids is"),
    ({"logprobs": True}, "logprobs is True"),
    ({"ignore_eos": "x"}, "ignore_eos is 'x': expected True or False")])
def test_parameters_out_of_range_are_refused_by_name(arguments, words) -> None:
    with pytest.raises(ValueError, match=words) as error:
        SamplingParams(**arguments)
    assert "\n" not in str(error.value)
