"""What a check is made of: cases, the smallest first, and the mistakes that it can name.

A file tests/exercises/stepN*.py holds `CHECKS`, a tuple of these. The expected value of a case is what the
package's own function gives, so a check is as right as the package; what the check itself is worth is tested by the
wrong and right answers beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minillm.course.compare import Difference, difference, is_tensor


@dataclass(frozen=True)
class Case:
    """One call. `about`: what the case is a case of; `shown`: the input in words (default: the arguments).

    `function`: which of the exercise's functions is called (default: the first).
    """

    about: str
    args: dict[str, Any]
    shown: str = ""
    function: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What one case gave: `difference` is None if it was right, `error` is what was raised."""

    case: Case
    expected: Any
    came: Any = None
    error: Exception | None = None
    difference: Difference | None = None

    @property
    def right(self) -> bool:
        return self.error is None and self.difference is None


@dataclass(frozen=True)
class Mistake:
    """A mistake with a name, and the idea probably missing.

    `like`: the function with the mistake in it, recognised when it gives what came in every case (or raises the same
    error); `when`: a predicate on all outcomes, for what is better described than written. `function` as in Case.
    """

    name: str
    idea: str
    like: Callable[..., Any] | None = None
    when: Callable[[Sequence[Outcome]], bool] | None = None
    function: str | None = None


@dataclass(frozen=True)
class Check:
    """An exercise's cases and known mistakes.

    `cases` is called when the check runs (so that tensors are made then); `call(function, **args)` is how a function is
    called and what of it is compared (default: its return value); `names` are those of the parts of what is compared.
    `telling`: a single case's result is so full of numbers that it gives a mistake away. `draw(ours, theirs, args)`:
    the lines of a picture of what both did in the case that failed.
    """

    exercise: str
    cases: Callable[[], Sequence[Case]]
    mistakes: tuple[Mistake, ...] = ()
    names: Sequence[str] = ()
    tolerance: float = 1e-5
    call: Callable[..., Any] = field(default=lambda function, **args: function(**args))
    telling: bool = False
    draw: Callable[[Callable[..., Any], Callable[..., Any], dict[str, Any]], Sequence[str]] | None = None

    def diagnose(self, outcomes: Sequence[Outcome], failed: Outcome) -> Mistake | None:
        """The first known mistake that explains every outcome of the function that failed.

        With `telling`, else the first that explains those up to the failure: a second mistake in the same answer then
        spoils only later, larger cases.
        """
        concerned = [o for o in outcomes if o.case.function == failed.case.function]
        so_far = concerned[: concerned.index(failed) + 1]
        for seen in (concerned, so_far) if self.telling else (concerned,):
            for mistake in self.mistakes:
                if mistake.function == failed.case.function and self._matches(mistake, seen):
                    return mistake
        return None

    def _matches(self, mistake: Mistake, outcomes: Sequence[Outcome]) -> bool:
        if mistake.like is not None:
            return all(self._explains(mistake.like, outcome) for outcome in outcomes)
        try:
            return mistake.when(outcomes)
        except (TypeError, IndexError, ValueError, KeyError, AttributeError):
            return False  # the reader's function may return anything at all

    def _explains(self, like: Callable[..., Any], outcome: Outcome) -> bool:
        try:
            made = self.call(like, **copied(outcome.case.args))
        except Exception as error:
            return type(error) is type(outcome.error)
        return outcome.error is None and difference(made, outcome.came, self.tolerance) is None


def copied(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments with their tensors and lists copied, so that a function that writes into them spoils nothing."""
    return {name: _copy(value) for name, value in args.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return value.clone() if is_tensor(value) else value


def written_into(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The name of a tensor or list among the arguments that was changed in place; None if there is none."""
    for name, value in before.items():
        if (isinstance(value, list) or is_tensor(value)) and difference(value, after[name], 0.0) is not None:
            return name
    return None


def part_is(index: int, formula: Callable[..., Any], among: Callable[..., bool] = lambda **args: True,
            tolerance: float = 1e-9) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: the part `index` of what came is `formula(**args)` in every case with `among(**args)`.

    For functions that return a tuple whose parts can each go wrong in their own way. It holds only if that part is the
    first wrong one of the first case that failed, so that the idea belongs to the difference shown.
    """
    def predicate(outcomes: Sequence[Outcome]) -> bool:
        failed = next(o for o in outcomes if not o.right)
        chosen = [o for o in outcomes if among(**o.case.args)]
        return (failed in chosen and _first_wrong_part(failed, tolerance) == index
                and all(_has_part(o, index) for o in chosen)
                and all(difference(formula(**o.case.args), o.came[index], tolerance) is None for o in chosen))

    return predicate


def _has_part(outcome: Outcome, index: int) -> bool:
    return isinstance(outcome.came, (tuple, list)) and len(outcome.came) > index


def _first_wrong_part(outcome: Outcome, tolerance: float) -> int | None:
    """Where a tuple that came parts from the one expected; None if that cannot be said."""
    if not isinstance(outcome.came, (tuple, list)) or len(outcome.came) != len(outcome.expected):
        return None
    return next((i for i, (wanted, got) in enumerate(zip(outcome.expected, outcome.came))
                 if difference(wanted, got, tolerance) is not None), None)
