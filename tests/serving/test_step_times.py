"""Step times: the roofline's to the digit, and a fit that finds the numbers it was made from."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.measure import cost
from minillm.measure.hardware import DATASHEETS
from minillm.measure.shape import KNOWN_SHAPES
from minillm.serving import step_times
from minillm.serving.step_times import FittedTimes, fit_times, nnls, roofline_times

SHAPE, H200 = KNOWN_SHAPES["llama-3-8b"], DATASHEETS["h200"]
# slower for one token than in proportion, as a processor is; times of the size that a small model has
KNOWN = FittedTimes((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0),
                    (.05, .05, .06, .065, .07, .1, .15, .26, .5, .98), per_row=4e-4, per_key=2e-6, per_pair=3e-8)


def steps(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Decodes, chunks and mixes of both, of 2**0 … 2**9 tokens."""
    rng, made = random.Random(seed), []
    for place in range(count):
        total, rows = 2 ** (place % 10), []
        while total:
            rows.append(1 if rng.random() < 0.6 else rng.randint(1, total))
            total -= rows[-1]
        made.append((rows, [new + rng.randrange(1500) for new in rows]))
    return made


def measured(count: int, noise: float = 0.0, seed: int = 0) -> list[tuple[list[int], list[int], float]]:
    rng = random.Random(seed + 1)
    return [(q, c, KNOWN(q, c) * rng.lognormvariate(0, noise)) for q, c in steps(count, seed)]


@pytest.mark.parametrize(("query_lens", "context_lens"), [([1], [1]), ([1] * 64, [900] * 64), ([512, 1], [512, 40])])
def test_roofline_times_are_those_of_the_cost_model(query_lens, context_lens) -> None:
    predicted = cost.predict_step(SHAPE, query_lens, context_lens, H200, "float8", 1.0, 0.5).seconds
    best = roofline_times(SHAPE, H200, "float8", 1.0, 0.5)(query_lens, context_lens)
    assert best == predicted > 0
    real = roofline_times(SHAPE, H200, "float8", 1.0, 0.5, efficiency=0.5, overhead=0.003)(query_lens, context_lens)
    assert real == 2 * predicted + 0.003


def test_a_decode_reads_all_weights_and_a_long_prompt_computes() -> None:
    """8.03 G parameters less the 0.53 G of the embedding table, 2 bytes each, at 4.8 TB/s: 3.1 ms."""
    times = roofline_times(SHAPE, H200, "bfloat16")
    assert times([1], [1]) == pytest.approx(3.127e-3, rel=1e-3)
    assert times([1] * 16, [1] * 16) == pytest.approx(times([1], [1]), rel=1e-3)
    assert times([8192], [8192]) == pytest.approx(2 * times([4096], [8192]), rel=1e-2)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"efficiency": 0}, "efficiency is 0"), ({"efficiency": 1.1}, "efficiency is 1.1"),
    ({"efficiency": math.nan}, "efficiency is nan"), ({"overhead": -1}, "overhead is -1"),
    ({"efficiency": "1"}, "efficiency is '1'"), ({"efficiency": 1e-320}, "expected a millionth to 1"),
    ({"overhead": "1"}, "overhead is '1'"), ({"weight_bytes": "2"}, "weight_bytes is '2'"),
    ({"weight_bytes": 0}, "weight_bytes is 0"), ({"kv_bytes": math.nan}, "kv_bytes is nan"),
    ({"overhead": math.inf}, "overhead is inf"), ({"dtype": "int3"}, "no peak for 'int3'")])
def test_a_roofline_that_makes_no_sense_is_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        roofline_times(**{"shape": SHAPE, "hardware": H200, "dtype": "bfloat16", **arguments})


def test_a_fit_finds_the_coefficients_it_was_made_from() -> None:
    found = fit_times(measured(200))
    assert found.knots == KNOWN.knots
    assert found.at_knots == pytest.approx(KNOWN.at_knots, rel=1e-6)
    assert (found.per_row, found.per_key, found.per_pair) == pytest.approx((4e-4, 2e-6, 3e-8), rel=1e-5)
    assert max(found.median_error, found.p95_error, abs(found.bias)) < 1e-7


def test_a_fit_to_noisy_steps_predicts_others_and_states_its_errors() -> None:
    found = fit_times(measured(400, noise=0.1))
    others = [found(q, c) / KNOWN(q, c) - 1 for q, c in steps(100, seed=9)]
    assert max(map(abs, others)) < 0.1 and abs(sum(others)) / 100 < 0.02
    assert 0.05 < found.median_error < 0.09  # half of a normal error of 0.1 lies within 0.067
    assert 0.15 < found.p95_error < 0.25 and abs(found.bias) < 0.03
    assert str(found).startswith("fitted to 400 steps: off by ")


def test_a_line_is_found_whatever_the_sizes_of_the_steps() -> None:
    """10 ms and 1 ms a token, up to a size well above the last knot."""
    records = [([n], [n + 40 * (n % 3)], 0.01 + 0.001 * n) for n in (1, 2, 3, 5, 7, 11, 20, 40, 90, 150, 200, 300, 350)]
    records += [([1] * n, [n] * n, 0.01 + 0.001 * n) for n in range(1, 20)]
    found = fit_times(records)
    assert found.knots[-1] < 300 and found.p95_error < 1e-9
    assert found([1000], [1000]) == pytest.approx(1.01)


def test_errors_are_weighed_by_the_time_they_are_part_of() -> None:
    """Of a step that took 1 s once and 3 s once: (x - 1)² + (x/3 - 1)² is least at 1.2, the mean would be 2."""
    found = fit_times([([1], [1], 0.01)] * 10 + [([64], [64], 1.0), ([64], [64], 3.0)])
    assert found([64], [64]) == pytest.approx(1.2) and found([1], [1]) == pytest.approx(0.01)


def test_bias_is_all_fitted_seconds_over_all_measured() -> None:
    records = measured(100, noise=0.3)
    found = fit_times(records)
    ratio = sum(found(q, c) for q, c, _ in records) / sum(seconds for _, _, seconds in records)
    assert found.bias == pytest.approx(ratio - 1) and found.bias != 0


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 600), st.floats(1e-4, 10), min_size=30, max_size=60))
def test_any_fit_is_monotone_and_never_negative(seconds) -> None:
    """Whatever was measured, even nonsense: more tokens, rows or context never take less time."""
    found = fit_times([([tokens], [tokens + 5], took) for tokens, took in seconds.items()])
    assert all(low <= high for low, high in zip(found.at_knots, found.at_knots[1:])) and found.at_knots[0] >= 0
    assert min(found.per_row, found.per_key, found.per_pair) >= 0
    curve = [found([n], [n]) for n in (1, 2, 3, 50, 600, 5000)]
    assert curve == sorted(curve)


def test_between_the_knots_it_goes_straight_and_beyond_the_last_it_goes_on() -> None:
    line = FittedTimes((2.0, 4.0, 8.0), (1.0, 3.0, 4.0), per_row=0.0, per_key=0.0, per_pair=0.0)
    assert [line([n], [n]) for n in (1, 2, 3, 4, 6, 8, 12)] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]
    terms = FittedTimes((1.0, 2.0), (0.0, 0.0), per_row=100.0, per_key=10.0, per_pair=1.0)
    assert terms([2, 1], [5, 7]) == 200 + 120 + (2 * 5 + 7)


@pytest.mark.parametrize(("records", "words"), [
    ([], "0 records of 0 sizes"), (measured(12), "12 records of 10 sizes.*13 records"),
    ([([4], [9], 1.0)] * 50, "50 records of 1 sizes"), ([([1, 1], [9], 1.0)], "record 0 has 2 query lengths and 1"),
    ([([], [], 1.0)], "record 0 has 0 query"), ([([3], [2], 1.0)], "record 0 has 3 new tokens in a context of 2"),
    ([([0], [2], 1.0)], "0 new tokens"), ([([1], [2], 0.0)], "record 0 took 0.0"),
    ([(["1"], [2], 1.0)], "record 0 has 1 new tokens"), ([([1], [2], "1")], "took 1"),
    ([([1], [2], math.nan)], "took nan"), ([([1], [2], math.inf)], "took inf")])
def test_records_that_cannot_be_fitted_are_refused(records, words) -> None:
    with pytest.raises(ValueError, match=words):
        fit_times(records)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_nnls_meets_the_conditions_of_a_minimum(seed) -> None:
    """Karush-Kuhn-Tucker: x >= 0, the gradient is nowhere negative, and 0 wherever x is positive."""
    rng = np.random.default_rng(seed)
    matrix, target = rng.random(size=(12, 8)), rng.random(size=12)  # columns alike: who was let in has to leave again
    x = nnls(matrix, target)
    gradient = matrix.T @ (matrix @ x - target)
    assert (x >= 0).all() and (gradient > -1e-8).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-8
    assert step_times.nnls(np.zeros((4, 2)), np.ones(4)).tolist() == [0.0, 0.0]
