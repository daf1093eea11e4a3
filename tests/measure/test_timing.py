"""Timing: what is run how often, and what is reported of it."""

from __future__ import annotations

import pytest

from minillm.measure import timing
from minillm.measure.timing import Timing, alternate, time_call


def test_median_and_quartiles() -> None:
    t = Timing((5.0, 1.0, 2.0, 3.0, 4.0))
    assert (t.low, t.median, t.high) == (2.0, 3.0, 4.0)
    assert (Timing((7.0,)).low, Timing((7.0,)).high) == (7.0, 7.0)


def test_warm_up_runs_are_not_counted() -> None:
    runs = []
    result = time_call(lambda: runs.append(1), warmup=3, repeats=5)
    assert (len(runs), len(result.samples)) == (8, 5)


def test_it_repeats_until_enough_time_is_measured(monkeypatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert len(time_call(lambda: None, warmup=0, repeats=2, min_seconds=6).samples) == 6


def test_alternation_takes_turns_and_turns_around() -> None:
    order = []
    result = alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, warmup=1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert [len(t.samples) for t in result.values()] == [3, 3]


@pytest.mark.parametrize("call, words", [
    (lambda: time_call(print, repeats=0), "repeats is 0"), (lambda: time_call(print, warmup=-1), "warmup is -1"),
    (lambda: alternate({}), "nothing to time"), (lambda: alternate({"a": print}, rounds=0), "rounds is 0")])
def test_nonsense_is_refused(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
