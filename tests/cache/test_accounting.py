"""Where KV memory goes: cases that can be worked out by hand, and the lesson's claims on its trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache.accounting import Contiguous, Paged, simulate
from minillm.measure.workload import lognormal_lengths

traces = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=12)


def memories(capacity: int):
    return [Contiguous(capacity, lambda prompt, final: 40), Contiguous(capacity, lambda prompt, final: final),
            Paged(capacity, 1), Paged(capacity, 4)]


@settings(max_examples=60, deadline=None)
@given(traces, st.sampled_from([40, 64, 100]))
def test_parts_make_up_the_whole_and_all_memory_comes_back(trace, capacity) -> None:
    for memory in memories(capacity):
        use = simulate(memory, trace)
        assert all(part >= -1e-12 for part in (use.written, use.reserved, use.stranded, use.spare))
        assert use.written + use.reserved + use.stranded + use.spare == pytest.approx(1)
        assert memory.reserved() == 0
        if isinstance(memory, Contiguous):
            assert not memory.ranges and use.preemptions == 0
    assert simulate(Paged(capacity, 1), trace).reserved == 0  # blocks of one token cannot be half empty


def test_slots_for_the_longest_by_hand() -> None:
    """Two slots of 10 in 25 tokens; four requests of 2 + 2: pairs hold 2, 3 and 4 tokens in turn, while two wait."""
    use = simulate(Contiguous(25, lambda prompt, final: 10), [(2, 2)] * 4)
    assert use.written == pytest.approx(2 * (2 + 3 + 4) / 3 / 25)
    assert use.stranded == pytest.approx(5 / 25)
    assert use.concurrency == 2


def test_pages_by_hand() -> None:
    """Six blocks of 4, requests of 3 + 3: four enter with a block each, and two more. Then nobody can grow to 5."""
    use = simulate(Paged(24, 4), [(3, 3)] * 7)
    assert use.preemptions > 0
    assert use.concurrency > 3
    assert simulate(Paged(24, 4), [(3, 3)] * 2).preemptions == 0


def test_first_fit_reuses_a_hole() -> None:
    memory = Contiguous(10, lambda prompt, final: final)
    assert memory.enter(0, 1, 4) and memory.enter(1, 1, 4) and not memory.enter(2, 1, 3)
    memory.leave(0)
    assert memory.enter(2, 1, 3) and memory.ranges[2] == (0, 3)
    assert not memory.enter(3, 1, 3)  # 1 + 2 tokens are free, in two places


def test_the_lessons_trace() -> None:
    """Waste under 4 % with pages of 16, over 60 % with slots for the longest; at least 2.5 times as many at once."""
    lengths = lognormal_lengths(600, 256, 1.0, 2048)
    trace = [((n + 1) // 2, n // 2) for n in lengths]
    naive = simulate(Contiguous(16 * 2048, lambda prompt, final: 2048), trace)
    paged = simulate(Paged(16 * 2048, 16), trace)
    assert naive.waste > 0.6 and paged.waste < 0.04
    assert paged.concurrency >= 2.5 * naive.concurrency


def test_a_request_that_cannot_fit_is_refused() -> None:
    for memory in (Contiguous(8, lambda prompt, final: final), Paged(8, 4)):
        with pytest.raises(ValueError, match="request 0 is 9 tokens: expected one that fits 8"):
            simulate(memory, [(5, 4)])
