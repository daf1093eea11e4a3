"""Put the reader's functions in place of the package's, so that their code serves the model (--using exercises).

Every exercise that passes its check replaces the package's function of that name; the rest stay ours, and the report
says why. It is done before a model is built, once in each process: a worker is handed `report.ids` and calls
`exchange(ids=...)`, which checks nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from minillm.course import catalogue, checking, running, workspace
from minillm.course.exercise import Exercise, Target
from minillm.course.workspace import Workspace

HERE = "minillm.course."  # targets here (bug hunts) serve no model
FEW = 3  # exercises that are named of those that stay ours for one reason


@dataclass
class Report:
    """What was exchanged. `used`: exercises now running as the reader wrote them; `kept`: (exercise, why ours is used).

    `undo` puts the package's functions back.
    """

    used: list[Exercise] = field(default_factory=list)
    kept: list[tuple[Exercise, str]] = field(default_factory=list)
    replaced: list[tuple[Any, str, Any]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        """What a worker process needs: exchange(ids=report.ids)."""
        return [exercise.id for exercise in self.used]

    @property
    def attention(self) -> str | None:
        """The attention backend under which an exchanged function is called at all; None: any will do."""
        return next((exercise.backend for exercise in self.used if exercise.backend), None)

    def lines(self) -> list[str]:
        """What to tell the reader: their functions, then ours, each with the reason."""
        told = [f"yours: {', '.join(map(_named, self.used)) or 'none yet'}"]
        if self.attention:
            told.append(f"attention runs on the {self.attention} backend, the one that calls yours")
        reasons = dict.fromkeys(why for _, why in self.kept)
        for reason in reasons:
            named = [_named(exercise) for exercise, why in self.kept if why == reason]
            shown = [*named[:FEW], "…"] if len(named) > FEW + 1 else named  # minillm progress has all of them
            told.append(f"ours: {', '.join(shown)} ({reason})")
        return told

    def undo(self) -> None:
        while self.replaced:
            _put(*self.replaced.pop())


def exchange(ids: Sequence[str] | None = None, place: Workspace | None = None) -> Report:
    """Exchange the exercises of `ids`, or (None) every one that passes its check now.

    Raises CourseError outside the repository; nothing in the reader's files can make it fail.
    """
    place = place or workspace.find()
    report = Report()
    candidates = [e for e in catalogue.EXERCISES if not e.targets[0].module.startswith(HERE)]
    if ids is None:
        workspace.sync(place)
        for checked in checking.check(place, candidates):
            if checked.result.passed:
                report.used.append(checked.exercise)
            else:
                report.kept.append((checked.exercise, reason(checked.result)))
    else:
        report.used = [e for e in candidates if e.id in ids]
    for number in catalogue.STEPS:
        chosen = [e for e in report.used if e.step_number == number]
        if chosen:
            _exchange_step(report, place.file(catalogue.STEPS[number]), number, chosen)
    return report


def reason(result: running.Result) -> str:
    """Why a result is not a pass, in a few words."""
    if result.status == running.NOT_STARTED:
        return "not written yet"
    facts = dict(result.facts)
    return facts.get("problem") or f"not right yet, minillm check {result.exercise} says where"


def _named(exercise: Exercise) -> str:
    return f"{exercise.id} {' and '.join(target.function for target in exercise.targets)}"


def _exchange_step(report: Report, path: Path, number: int, chosen: list[Exercise]) -> None:
    """Exchange the chosen exercises of one file; its other functions become the package's."""
    module = running.load_file(path)
    for exercise in catalogue.of_step(number):
        if exercise not in chosen:
            running.borrow(module, exercise)
    by_holder: dict[tuple[str, str], list[Target]] = {}
    for target in (t for e in chosen for t in e.functions):
        if target.owner is None:
            _replace(report, target.import_module(), target.function, getattr(module, target.reader_name))
        else:
            by_holder.setdefault((target.module, target.owner), []).append(target)
    for targets in by_holder.values():
        _replace(report, targets[0].import_module(), targets[0].owner, combined_class(module, targets))


def combined_class(module: ModuleType, targets: Sequence[Target]) -> type:
    """One class with every method of it that the reader wrote: each exercise is a subclass with one method."""
    classes = tuple(getattr(module, target.reader_name) for target in targets)
    return classes[0] if len(classes) == 1 else type(targets[0].owner, classes, {})


def _replace(report: Report, holder: Any, name: str, replacement: Any) -> None:
    report.replaced.append((holder, name, getattr(holder, name)))
    _put(holder, name, replacement)


def _put(holder: Any, name: str, value: Any) -> None:
    """Set it, and have kernels beside it compiled again: what was compiled holds the functions that it called then."""
    setattr(holder, name, value)
    for kernel in list(vars(holder).values()):
        if hasattr(kernel, "device_caches"):  # of Triton's JITFunction; an interpreted kernel has none
            kernel.hash = None
            kernel.device_caches.clear()
