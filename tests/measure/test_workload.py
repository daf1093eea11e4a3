"""Length traces: reproducible, with the median and the tail that they promise."""

from __future__ import annotations

import statistics

import pytest

from minillm.measure.workload import lognormal_lengths


def test_lengths_are_seeded_and_have_the_asked_median_and_tail() -> None:
    lengths = lognormal_lengths(20_000, 256, 1.0, 2048, seed=3)
    assert lengths == lognormal_lengths(20_000, 256, 1.0, 2048, seed=3) != lognormal_lengths(20_000, 256, 1.0, 2048)
    assert abs(statistics.median(lengths) / 256 - 1) < 0.03
    assert min(lengths) >= 1 and max(lengths) == 2048
    beyond = sum(length >= 256 * 2.718281828 for length in lengths) / len(lengths)
    assert abs(beyond - 0.1587) < 0.01  # one σ above the median


def test_no_spread_gives_equal_lengths() -> None:
    assert lognormal_lengths(3, 100, 0, 2048) == [100] * 3


@pytest.mark.parametrize(("arguments", "words"), [
    ((0, 256, 1.0, 2048), "count is 0"), ((1, 0, 1.0, 2048), "median is 0"), ((1, 256, -1, 2048), "sigma is -1"),
    ((1, 256, 1.0, 0), "maximum is 0"), ((1, 256, float("nan"), 9), "sigma is nan")])
def test_bad_arguments_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        lognormal_lengths(*arguments)
