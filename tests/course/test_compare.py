"""What is told of a difference: a few values, and of many only the first wrong one with its place."""

from __future__ import annotations

import torch

from minillm.course.compare import difference


def test_a_few_values_are_shown_whole() -> None:
    out, lse = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
    found = difference((out, lse), (out, lse + 1), 1e-5, ("out:", "lse:"))
    assert (found.expected, found.came) == ("out: [[1.0, 2.0]], lse: [3.0]", "out: [[1.0, 2.0]], lse: [4.0]")
    assert found.where == "lse"


def test_of_many_values_the_first_wrong_one_is_shown_with_its_place() -> None:
    out, lse = torch.zeros(3, 4), torch.zeros(3)
    wrong = out.clone()
    wrong[1, 2] = 5.0
    found = difference((out, lse, "all inside"), (wrong, lse, "1 load outside x"), 1e-5, ("out:", "lse:", "accesses:"))
    assert found.expected == "out: at [1, 2]: 0.0, accesses: all inside"
    assert found.came == "out: at [1, 2]: 5.0, accesses: 1 load outside x"
    assert found.where == "out, row 1 differs, of rows 0 to 2"


def test_of_several_tensors_with_many_values_together_the_wrong_one_is_shown() -> None:
    blocks, slots = torch.arange(6), torch.arange(6)
    found = difference((blocks, slots, "all inside"), (blocks, slots + 1, "all inside"), 0.0,
                       ("block", "slot", "accesses:"))
    assert found.expected == "slot [0, 1, 2, 3, 4, 5], accesses: all inside"
    assert found.came == "slot [1, 2, 3, 4, 5, 6], accesses: all inside"
    assert found.where == "slot"


def test_with_many_values_other_parts_and_shapes_are_told_too() -> None:
    out = torch.zeros(3, 4)
    names = ("out:", "accesses:")
    found = difference((out, "all inside"), (out, "2 stores outside x"), 1e-5, names)
    assert (found.expected, found.came) == ("accesses: all inside", "accesses: 2 stores outside x")
    found = difference((out, "all inside"), (out[:2], "all inside"), 1e-5, names)
    assert (found.expected, found.came) == ("out: shape [3, 4], accesses: all inside",
                                            "out: shape [2, 4], accesses: all inside")
    found = difference((out, "all inside"), (None, "all inside"), 1e-5, names)
    assert (found.kind, found.came) == ("value", "out: None, accesses: all inside")
