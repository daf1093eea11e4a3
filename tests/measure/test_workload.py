"""Workloads: reproducible, with the rates, medians and tails that they promise; saved and read back exactly."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.measure import workload
from minillm.measure.workload import SPECIAL, Lengths, WorkItem, lognormal_lengths, make_workload

sizes = st.integers(1, 10**6)
seconds = st.floats(0, 1e9)
firsts = st.builds(WorkItem, seconds, sizes, sizes, priority=st.integers(-5, 5))
shared = st.builds(WorkItem, seconds, sizes, sizes, prefix=st.integers(0, 9), prefix_tokens=sizes)


@st.composite
def workloads(draw) -> list[WorkItem]:
    items = draw(st.lists(firsts | shared, min_size=1, max_size=5))
    for _ in range(draw(st.integers(0, 3))):
        items.append(WorkItem(draw(seconds), draw(sizes), draw(sizes), follows=draw(st.integers(0, len(items) - 1))))
    return items


def test_lengths_are_seeded_and_have_the_asked_median_and_tail() -> None:
    lengths = lognormal_lengths(20_000, 256, 1.0, 2048, seed=3)
    assert lengths == lognormal_lengths(20_000, 256, 1.0, 2048, seed=3) != lognormal_lengths(20_000, 256, 1.0, 2048)
    assert abs(statistics.median(lengths) / 256 - 1) < 0.03
    assert min(lengths) >= 1 and max(lengths) == 2048
    beyond = sum(length >= 256 * 2.718281828 for length in lengths) / len(lengths)
    assert abs(beyond - 0.1587) < 0.01  # one σ above the median


def test_a_spread_beyond_all_numbers_is_cut_too() -> None:
    assert set(lognormal_lengths(50, 9 * 10**18, 100, 9 * 10**18, seed=1)) >= {1, 9 * 10**18}


def test_no_spread_gives_equal_lengths() -> None:
    assert lognormal_lengths(3, 100, 0, 2048) == [100] * 3 == Lengths(100).draw(3, seed=8)


@pytest.mark.parametrize(("arguments", "words"), [
    ((0, 256, 1.0, 2048), "count is 0"), ((1, 0, 1.0, 2048), "median is 0"), ((1, 256, -1, 2048), "sigma is -1"),
    ((1, 256, 1.0, 0), "maximum is 0"), ((1, 256, float("nan"), 9), "sigma is nan"),
    ((1.5, 256, 1.0, 2048), "count is 1.5: expected a whole number"), ((1, "256", 1.0, 2048), "median is '256'"),
    ((1, math.nan, 1.0, 2048), "median is nan"), ((1, 10**400, 1.0, 2048), "median is 1000"),
    ((1, 256, None, 2048), "sigma is None"), ((1, 256, 1.0, math.nan), "maximum is nan"),
    ((1, 256, 1.0, 2048.5), "maximum is 2048.5")])
def test_bad_arguments_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        lognormal_lengths(*arguments)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_asked_rate_and_burstiness(cv) -> None:
    times = workload.gamma_arrivals(40_000, 8.0, cv, seed=2)
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times)]
    assert times == sorted(times) and min(gaps) >= 0
    assert 40_000 / times[-1] == pytest.approx(8.0, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_poisson_counts_vary_as_much_as_they_are_large() -> None:
    """In a window of 1 s at 8 a second: mean 8 and variance 8. Bursts of cv 3 have a variance well above."""
    def window_counts(times) -> list[int]:
        counts = [0] * (int(times[-1]) + 1)
        for time in times:
            counts[int(time)] += 1
        return counts[:-1]

    poisson = window_counts(workload.poisson_arrivals(40_000, 8.0, seed=2))
    assert statistics.mean(poisson) == pytest.approx(8, rel=0.03)
    assert statistics.variance(poisson) == pytest.approx(8, rel=0.06)
    assert statistics.variance(window_counts(workload.gamma_arrivals(40_000, 8.0, 3.0, seed=2))) > 24
    assert workload.poisson_arrivals(9, 1.0, 1) == workload.poisson_arrivals(9, 1.0, 1)
    assert workload.poisson_arrivals(9, 1.0, 1) != workload.poisson_arrivals(9, 1.0, 2)
    assert workload.at_once(3) == [0.0, 0.0, 0.0]


def test_a_workload_is_seeded_and_its_kinds_of_number_do_not_disturb_each_other() -> None:
    first = make_workload(50, rate=2.0, seed=1)
    assert first == make_workload(50, rate=2.0, seed=1) != make_workload(50, rate=2.0, seed=2)
    faster = make_workload(50, rate=4.0, seed=1)
    assert [(i.prompt_tokens, i.output_tokens) for i in first] == [(i.prompt_tokens, i.output_tokens) for i in faster]
    assert [i.arrival / 2 for i in first] == pytest.approx([i.arrival for i in faster])
    alike = make_workload(50, prompt=Lengths(50, 1.0), output=Lengths(50, 1.0))
    assert [i.prompt_tokens for i in alike] != [i.output_tokens for i in alike]
    assert {i.arrival for i in make_workload(5)} == {0.0}


def test_conversations_follow_turn_by_turn() -> None:
    items = make_workload(400, rate=1.0, turns=3, think=5.0, prefixes=4, prefix_tokens=64, seed=1)
    workload.check(items)
    assert len(items) == 1200
    assert [item.follows for item in items] == [None] * 400 + list(range(800))
    assert {(item.prefix, item.prefix_tokens) for item in items[:400]} == {(n, 64) for n in range(4)}
    assert {(item.prefix, item.prefix_tokens) for item in items[400:]} == {(None, 0)}
    assert statistics.mean(item.arrival for item in items[400:]) == pytest.approx(5.0, rel=0.1)


@given(workloads())
def test_saved_and_loaded_is_the_same(tmp_path_factory, items) -> None:
    path = tmp_path_factory.mktemp("trace") / "work.jsonl"
    workload.save(path, items)
    assert workload.load(path) == items
    assert len(path.read_text().splitlines()) == len(items)


def test_a_saved_line_holds_what_is_not_at_its_default(tmp_path) -> None:
    workload.save(tmp_path / "w", [WorkItem(0.5, 7, 3), WorkItem(1, 2, 2, follows=0)])
    assert [json.loads(line) for line in (tmp_path / "w").read_text().splitlines()] == [
        {"arrival": 0.5, "prompt_tokens": 7, "output_tokens": 3},
        {"arrival": 1.0, "prompt_tokens": 2, "output_tokens": 2, "follows": 0}]


GOOD = '{"arrival": 1, "prompt_tokens": 2, "output_tokens": 3}'


@pytest.mark.parametrize(("line", "words"), [
    ("{oops", "line 2: '{oops' is not JSON: expected one object a line"),
    ("[" * 100_000, "is not JSON"),
    ("[1]", "it holds a list: expected an object"),
    (GOOD[:-1] + ', "colour": 1}', "'colour' is no field: expected arrival, "),
    ('{"arrival": 1, "prompt_tokens": 2}', "output_tokens is missing"),
    (GOOD.replace("2", '"2"'), "prompt_tokens is '2': expected a whole number, at least 1"),
    (GOOD.replace("2", "true"), "prompt_tokens is True"), (GOOD.replace("2", "2.0"), "prompt_tokens is 2.0"),
    (GOOD.replace("3", "0"), "output_tokens is 0: expected a whole number, at least 1"),
    (GOOD.replace("1", "-1"), "arrival is -1: expected seconds, 0 to 1e9"),
    (GOOD.replace("1", "NaN"), "arrival is nan"), (GOOD.replace("1", "1e999"), "arrival is inf"),
    (GOOD.replace("1", "1" + "0" * 400), "arrival is 1000"), (GOOD.replace("1", "null"), "arrival is None"),
    (GOOD[:-1] + ', "follows": 1}', "follows is 1: expected an earlier item, below 1"),
    (GOOD[:-1] + ', "follows": 7}', "follows is 7"), (GOOD[:-1] + ', "follows": -1}', "follows is -1"),
    (GOOD[:-1] + ', "prefix": 1}', "prefix_tokens is 0: expected at least 1"),
    (GOOD[:-1] + ', "prefix_tokens": 4}', "prefix_tokens is 4: expected 0, there is no prefix"),
    (GOOD[:-1] + ', "prefix": 1, "prefix_tokens": 4, "follows": 0}', "prefix is 1: expected none"),
    (GOOD[:-1] + ', "priority": 0.5}', "priority is 0.5")])
def test_a_wrong_line_is_named(tmp_path, line, words) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError) as caught:
        workload.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path} line 2: ") and words in message and "\n" not in message and len(message) < 1000


def test_files_that_are_no_workload_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="cannot read .*nowhere: No such file"):
        workload.load(tmp_path / "nowhere")
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ValueError, match="empty holds no items"):
        workload.load(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary is not UTF-8"):
        workload.load(tmp_path / "binary")
    with pytest.raises(ValueError, match="cannot write"):
        workload.save(tmp_path / "no" / "folder", [WorkItem(0, 1, 1)])
    with pytest.raises(ValueError, match="item 0: follows is 3"):
        workload.save(tmp_path / "forward", [WorkItem(0, 1, 1, follows=3)])
    with pytest.raises(ValueError, match="no items"):
        workload.save(tmp_path / "nothing", [])
    assert not (tmp_path / "forward").exists() and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(("arguments", "words"), [
    ({"count": 0}, "count is 0"), ({"rate": 0}, "rate is 0"), ({"rate": math.inf}, "rate is inf"),
    ({"rate": 1, "cv": -1}, "cv is -1"), ({"turns": 0}, "turns is 0"), ({"think": -1}, "think is -1"),
    ({"prefixes": 2}, "prefixes is 2 and prefix_tokens is 0: expected both"),
    ({"prefix_tokens": 2}, "prefixes is 0 and prefix_tokens is 2"),
    ({"prefixes": -1}, "prefixes is -1"), ({"count": 1.5}, "count is 1.5"), ({"rate": "2"}, "rate is '2'"),
    ({"rate": 1e-320}, "rate is 1e-320: expected requests a second, more than 0, so that all come within 1e7"),
    ({"think": 1e300, "turns": 2}, "think is 1e\\+300"), ({"turns": math.nan}, "turns is nan"),
    ({"rate": 1, "cv": "1"}, "cv is '1'")])
def test_a_workload_that_makes_no_sense_is_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        make_workload(**{"count": 4, **arguments})


@pytest.mark.parametrize(("arguments", "words"), [
    ((0,), "median is 0"), ((100, -1.0), "sigma is -1"), ((100, 1.0, 50), "maximum is 50: expected at least the"),
    ((math.inf,), "median is inf"), ((math.nan,), "median is nan"), ((100, 1.0, 200.5), "maximum is 200.5")])
def test_lengths_that_make_no_sense_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        Lengths(*arguments)


def test_token_ids_are_seeded_and_avoid_special_ids() -> None:
    item = WorkItem(0, 5000, 1)
    ids = workload.own_tokens(3, item, vocab=SPECIAL + 4)
    assert len(ids) == 5000 and set(ids) == set(range(SPECIAL, SPECIAL + 4))
    assert ids == workload.own_tokens(3, item, vocab=SPECIAL + 4)
    assert ids != workload.own_tokens(4, item, vocab=SPECIAL + 4)
    assert ids != workload.own_tokens(3, item, vocab=SPECIAL + 4, seed=1)
    for vocab in (SPECIAL, 1000.5):
        with pytest.raises(ValueError, match=f"vocab is {vocab}: expected a whole number, at least {SPECIAL + 1}"):
            workload.own_tokens(3, item, vocab=vocab)


def test_a_prompt_is_prefix_or_history_then_its_own_tokens() -> None:
    long, short, other = (WorkItem(0, 3, 1, prefix=p, prefix_tokens=n) for p, n in ((1, 40), (1, 16), (2, 40)))
    prompts = [workload.prompt_ids(place, item, 1000) for place, item in enumerate((long, short, other))]
    assert [len(p) for p in prompts] == [43, 19, 43]
    assert prompts[0][:16] == prompts[1][:16] and prompts[0][:40] == workload.prefix_tokens_of(1, 40, 1000)
    assert prompts[0][:4] != prompts[2][:4]
    later = WorkItem(0, 3, 1, follows=0)
    assert workload.prompt_ids(9, later, 1000, history=[7, 8]) == [7, 8, *workload.own_tokens(9, later, 1000)]
