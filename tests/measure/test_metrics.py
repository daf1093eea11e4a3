"""Latency metrics by their definitions, on cases small enough to check by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.measure.metrics import SLO, RequestTimes, percentile, request_metrics, summarize

times = st.lists(st.floats(0, 100), min_size=1, max_size=30).map(sorted)


def test_one_request_by_hand() -> None:
    ttft, tpot, itls = request_metrics(10.0, [12.0, 12.5, 13.5])
    assert (ttft, tpot, itls) == (2.0, 0.75, [0.5, 1.0])


def test_a_single_token_has_a_ttft_and_nothing_else() -> None:
    assert request_metrics(1.0, [4.0]) == (3.0, None, [])
    summary = summarize([RequestTimes(1.0, [4.0])])
    assert summary.tpot is None
    assert summary.itl is None
    assert summary.e2e.p50 == 3.0


@given(times, st.floats(-10, 0))
def test_definitions_fit_each_other(token_times, arrival) -> None:
    """E2E = TTFT + TPOT·(N - 1), and the ITLs are as many as tokens after the first: TTFT is none of them."""
    request = RequestTimes(arrival, token_times)
    assert len(request.itls) == len(token_times) - 1
    assert request.ttft + math.fsum(request.itls) == pytest.approx(request.e2e)
    if len(token_times) > 1:
        assert request.ttft + request.tpot * (len(token_times) - 1) == pytest.approx(request.e2e)


def test_mean_tpot_weighs_requests_and_mean_itl_weighs_tokens() -> None:
    """The trap: the mean of per-request TPOTs is not the mean gap between tokens."""
    short, long = RequestTimes(0, [1, 2]), RequestTimes(0, [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9])
    summary = summarize([short, long])
    assert summary.tpot.mean == pytest.approx((1 + 0.1) / 2)
    assert summary.itl.mean == pytest.approx((1 + 9 * 0.1) / 10)


def test_throughput_and_goodput_by_hand() -> None:
    requests = [RequestTimes(0, [1, 2, 3]), RequestTimes(1, [9, 10]), RequestTimes(2, [3])]
    summary = summarize(requests, SLO(ttft=2.0, tpot=1.0))
    assert summary.seconds == 10
    assert summary.output_tokens_per_second == pytest.approx(0.6)
    assert summary.requests_per_second == pytest.approx(0.3)
    assert summary.goodput == pytest.approx(0.2)  # the second waits 8 s; the third has one token, and meets every TPOT
    assert summarize(requests).goodput is None
    assert summarize(requests, SLO(ttft=2.0, tpot=0.5)).goodput == pytest.approx(0.1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 100))
def test_percentiles_are_numpys(values, p) -> None:
    assert percentile(values, p) == pytest.approx(np.percentile(values, p), abs=1e-6)


@pytest.mark.parametrize("arrival, token_times, words", [
    (0.0, [], "no token times"), (5.0, [4.0], "came at 4.0: expected no earlier"), (0.0, [2.0, 1.0], "at 1.0 follows"),
    (0.0, [math.nan], "not a finite"), (math.inf, [1.0], "not a finite"), (0.0, ["1"], "not a finite")])
def test_times_that_make_no_sense_are_refused(arrival, token_times, words) -> None:
    with pytest.raises(ValueError, match=words):
        RequestTimes(arrival, token_times)


@pytest.mark.parametrize("limit", [0, -1, math.nan, math.inf, "1"])
def test_a_limit_that_makes_no_sense_is_refused(limit) -> None:
    for name in ("ttft", "tpot", "e2e"):
        with pytest.raises(ValueError, match=f"{name} is {limit!r}: expected seconds, more than 0"):
            SLO(**{name: limit})


def test_nothing_to_summarize_is_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        summarize([])
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="expected 0 to 100"):
        percentile([1.0], 101)
