"""Checks of Triton kernels: the result is compared, and whether every load and store was inside of a tensor.

What is right only by chance is NaN here: see `tracing`. A check is made with `kernel_check`, its mistakes with `gives`
(a formula in torch for the result) and `strays` (right, but not inside). An error of Triton's is explained by
`triton_errors`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from minillm.course import pictures, tracing, triton_errors
from minillm.course.checks import Case, Check, Mistake, Outcome
from minillm.course.compare import difference
from minillm.course.tracing import ALL_INSIDE

NAN = float("nan")


class KernelCheck(Check):
    """A check that also says what an error of Triton's means."""

    def diagnose(self, outcomes: Sequence[Outcome], failed: Outcome) -> Mistake | None:
        return triton_errors.meaning(failed) or super().diagnose(outcomes, failed)


def watched(function: Callable[..., torch.Tensor], **args: Any) -> tuple[torch.Tensor, str]:
    """What a launcher returns, and whether its kernel stayed inside."""
    with tracing.record() as trace:
        result = function(**args)
    return result, trace.told()


@contextlib.contextmanager
def in_place_of(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While this lasts, interpreted kernels of a module call `function` where they would call their own of that name.

    What `function` itself finds under that name is what was there before, which during a check refuses.
    """
    before = getattr(module, name)

    def stands_in(*args: Any) -> Any:
        setattr(module, name, before)
        try:
            return function(*args)
        finally:
            setattr(module, name, stands_in)

    setattr(module, name, stands_in)
    try:
        yield
    finally:
        setattr(module, name, before)


def gives(formula: Callable[..., torch.Tensor], outside: str | None = None) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: the result of every case is the formula's, and so is the first wrong one.

    A single wrong case whose wrong values are all NaN may be anybody's: it counts only with what is outside, "load" or
    "store" or "" for neither; None: not at all.
    """
    def predicate(outcomes: Sequence[Outcome]) -> bool:
        failed = next(o for o in outcomes if not o.right)
        if difference(failed.expected[0], failed.came[0], 1e-5) is None:
            return False
        if not all(difference(formula(**o.case.args), o.came[0], 1e-5) is None for o in outcomes):
            return False
        if sum(not o.right for o in outcomes) > 1 or has_a_wrong_number(failed.expected[0], failed.came[0]):
            return True
        return outside is not None and (outside in failed.came[1] if outside else failed.came[1] == ALL_INSIDE)

    return predicate


def has_a_wrong_number(expected: torch.Tensor, came: torch.Tensor) -> bool:
    """Whether a value differs that is not NaN: of all that can go wrong much ends in NaN."""
    return not torch.allclose(torch.where(came.isnan(), expected, came), expected, 1e-5, 1e-5, equal_nan=True)


def strays(kinds: str, times: Callable[..., int] | None = None,
           among: Callable[..., bool] = lambda **args: True) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: results are right, but there are loads, stores or both outside; `times` of them, if given.

    among: which cases these are in.
    """
    def predicate(outcomes: Sequence[Outcome]) -> bool:
        failed = next(o for o in outcomes if not o.right)
        found = " and ".join(kind for kind in ("load", "store") if kind in failed.came[1])
        counts = [sum(map(int, re.findall(r"\d+", o.came[1]))) for o in outcomes]
        return (found == kinds and all(difference(o.expected[0], o.came[0], 1e-5) is None for o in outcomes)
                and all(among(**o.case.args) for o, count in zip(outcomes, counts) if count)
                and (times is None or counts == [times(**o.case.args) for o in outcomes]))

    return predicate


def kernel_check(exercise: str, cases: Callable[[], Sequence[Case]], *mistakes: Mistake,
                 given: Callable[..., dict[str, Any]] = lambda **args: args) -> KernelCheck:
    """A check that calls a launcher. `given`: what it is handed in a case, made of the case's arguments."""
    return KernelCheck(
        exercise,
        cases,
        mistakes,
        names=("result", "accesses:"),
        telling=True,
        call=lambda function, **args: watched(function, **given(**args)),
        draw=lambda ours, theirs, args: pictures.draw(ours, theirs, given(**args)),
    )


def all_inside(outcomes: Sequence[Outcome]) -> bool:
    """Whether no case loads or stores outside."""
    return all(o.came[1] == ALL_INSIDE for o in outcomes)


NO_KERNEL = Mistake(
    "no-kernel",
    "No kernel has run. The launcher, as it stood, starts it; what torch computes does not count.",
    when=lambda outcomes: all(o.came[1] == "no kernel was launched" for o in outcomes),
)


def all_nan(like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, NAN)
