"""What the figures draw, where it is computed and not only drawn."""

from __future__ import annotations

from minillm.measure import plots


def test_a_sequence_that_is_preempted_holds_no_slot_meanwhile() -> None:
    steps = [(0, 1, {1: 5, 2: 4}), (1, 2, {1: 1, 2: 1}), (2, 3, {1: 1}), (3, 4, {1: 1, 2: 6}), (4, 5, {1: 1, 2: 1})]
    assert sorted(plots._slot_spans(steps, {1: 4, 2: 5})) == [
        (0, "decode", 1, 4), (0, "prefill", 0, 1), (0, "thrown away", 4, 5),
        (1, "decode", 1, 2), (1, "decode", 4, 5), (1, "prefill", 0, 1), (1, "prefill", 3, 4)]
