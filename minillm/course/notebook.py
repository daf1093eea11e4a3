"""The course's face in a notebook: prints, never raises, and says the same on every machine while nothing is done."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minillm.course import catalogue, checking, commands, exchange, workspace
from minillm.course import progress as progress_module
from minillm.course.progress import Progress
from minillm.course.workspace import Workspace


def _never_raises(function: Callable[..., Any]) -> Callable[..., Any]:
    """A cell that fails stops the notebook; a line that says why does not."""
    @functools.wraps(function)
    def calm(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            print(f"{function.__name__}: {error}")
            return None

    return calm


@contextlib.contextmanager
def _progress(place: Workspace) -> Iterator[Progress]:
    """The reader's progress, saved at the end; an empty one, not saved, for a lesson as published."""
    if place.committed:
        yield Progress()
        return
    kept = progress_module.load(place)
    if kept.note:
        print(kept.note)
    yield kept
    progress_module.save(place, kept)


@_never_raises
def check(names: Sequence[str]) -> None:
    """Check, and print as the command does."""
    place = workspace.find()
    exercises = catalogue.select(names)
    workspace.sync(place)
    results = checking.check(place, exercises)
    with _progress(place) as kept:
        if not place.committed:
            commands.remember(place, kept, results)
        commands.show(place, kept, results)


@_never_raises
def guess(name: str, value: float | None) -> float | None:
    """Keep a number, or give back the one kept."""
    place = workspace.find()
    with _progress(place) as kept:
        if value is not None:
            kept.guesses[name] = float(value)
        return kept.guesses.get(name)


@_never_raises
def use_exercises() -> exchange.Report:
    """Exchange, and print what is whose."""
    report = exchange.exchange()
    print("\n".join(report.lines()))
    return report
