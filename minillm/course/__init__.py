"""The course: exercises, their checks, and progress. In a notebook:

    from minillm import course
    course.check("0.1")             like `minillm check 0.1`
    course.guess("1.ttft512", 0.8)  keeps your number, and returns it for the figure; None: no guess yet
    course.use_exercises()          your functions, where they pass, in place of the package's

These print and never raise. The lessons as published (run from notebooks/, not mine/notebooks) see untouched stubs and
no guesses, so that their output is the same whoever builds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minillm.course.exchange import Report


def check(*names: str) -> None:
    """Check exercises or steps and print what `minillm check` prints."""
    from minillm.course import notebook

    notebook.check(names)


def guess(name: str, value: float | None = None) -> float | None:
    """Keep the reader's number under a name and return it; None asks for the number kept before (None if none was)."""
    from minillm.course import notebook

    return notebook.guess(name, value)


def use_exercises() -> Report | None:
    """Exchange every exercise that passes, and print which; `.undo()` on what is returned puts ours back."""
    from minillm.course import notebook

    return notebook.use_exercises()
