"""What Triton's commonest errors mean, for a reader who meets them for the first time.

Triton's words are kept beside it: they are what one finds when one looks for them. They are those of 3.6 to 3.9;
tests/course/test_kernels.py raises each.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence

from minillm.course.checks import Mistake, Outcome

BLOCK_TRUTH = "a block is neither true nor false: it holds a value for each of its elements"


def says(pattern: str, more: Callable[[Exception], bool] = lambda error: True) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: the one outcome is an error whose message has the pattern in it."""
    return lambda outcomes: bool(re.search(pattern, str(outcomes[0].error))) and more(outcomes[0].error)


def taken_apart_by_us(error: Exception) -> bool:
    """Whether it was our code, not the reader's, that asked a block for its elements: to unpack what was returned."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [name for name in modules if not name.startswith("triton.")][-1].startswith("minillm")


ERRORS = (
    Mistake(
        "arange-not-constexpr",
        "How long a block is must be known when the kernel is compiled, and be a power of two: both ends of tl.arange "
        "are tl.constexpr parameters or numbers. Take the padded block, and mask what there is not; a block that "
        "begins elsewhere is begin + tl.arange(0, …).",
        when=says(r"^arange"),
    ),
    Mistake(
        "shapes-do-not-match",
        "Two blocks of different shapes meet. Sizes have to be equal, or 1. x[:, None] is a column [N, 1], x[None, :] "
        "a row [1, N]; together they make a tile.",
        when=says(r"make_shape_compatible|annot broadcast|not be broadcast|too many indices|to have shape"),
    ),
    Mistake(
        "no-such-axis",
        "A block of N numbers has one axis, 0; a tile has two: 0 goes down its columns, 1 along its rows.",
        when=says(r"axis \d+ out of bounds"),
    ),
    Mistake(
        "dot-of-other-shapes",
        "tl.dot multiplies two tiles, [M, K] by [K, N]: both have two dimensions, and the inner sizes are the same.",
        when=says(r"equal ranks|equal reduction dimensions|2D or 3D|inner dimension|First input shape"),
    ),
    Mistake(
        "one-address",
        "A pointer is a single address. A block of values, or a mask, goes with a block of addresses: the pointer plus "
        "a block of places.",
        when=says(r"cannot be block type if pointer argument is not a block"),
    ),
    Mistake(
        "not-an-address",
        "tl.load and tl.store take addresses: a pointer plus places, as in x_ptr + at. These are numbers only.",
        when=says(r"Unsupported ptr type"),
    ),
    Mistake(
        "sum-with-a-pointer",
        "A pointer is an address: whole numbers are added to it, and that is all. What lies there is loaded first, by "
        "tl.load. Is it a fraction that is added? // divides without one.",
        when=says(r"pointer<|pointers together|unexpected type pointer"),
    ),
    Mistake(
        "torch-in-a-kernel",
        "A kernel works on blocks, and torch on tensors: inside of a kernel there is tl only.",
        when=says(r"must be Tensor, not tensor"),
    ),
    Mistake(
        "truth-of-a-block",
        "if, and, or, not and Python's max decide once, for all of a block. Element by element: tl.where(condition, a, "
        "b), tl.maximum, a mask for loads and stores; conditions are joined by &, each in parentheses.",
        when=says(re.escape(BLOCK_TRUTH)),
    ),
    Mistake(
        "not-all-returned",
        "The caller takes several values apart: return all of them, in the order that the docstring names them.",
        when=says(r"is not iterable|cannot unpack|values to unpack", taken_apart_by_us),
    ),
    Mistake(
        "element-of-a-block",
        "A kernel does not take single elements, neither with brackets nor with Python's max, sum or for. Memory is "
        "read by tl.load(x_ptr + at); tl.max and tl.sum make one number of a block.",
        when=says(r"'int' object is not iterable|unsupported tensor index"),
    ),
)


def meaning(outcome: Outcome) -> Mistake | None:
    """What an error of Triton's means; None if it is none of those known."""
    if outcome.error is None:
        return None
    return next((mistake for mistake in ERRORS if mistake.when([outcome])), None)
