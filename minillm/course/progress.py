"""What the reader has passed, how many hints they took, what they guessed. Kept in mine/.progress.json of each clone.

A file that cannot be read is renamed aside, and that is said once: progress starts afresh rather than stop anything.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minillm.course import catalogue
from minillm.course.exercise import Exercise
from minillm.course.workspace import Workspace, write_atomically

ALL_HINTS = 3


@dataclass
class Record:
    """One exercise: passed or not, how often checked, hints seen."""

    passed: bool = False
    checks: int = 0
    hints: int = 0


@dataclass
class Progress:
    """Everything kept.

    `speeds`: tokens per second of the reader's own engine and of ours, by step. `last`: the id of the exercise that was
    checked last.
    """

    records: dict[str, Record] = field(default_factory=dict)
    guesses: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, tuple[float, float]] = field(default_factory=dict)
    last: str | None = None
    note: str | None = None

    def of(self, exercise: Exercise) -> Record:
        return self.records.setdefault(exercise.id, Record())

    def next(self, after: Exercise | None = None) -> Exercise | None:
        """The next core exercise not passed, from `after` (None: the one checked last) on; else the first; else None.

        `after` itself counts whatever it is, and with a warm-up those of its step.
        """
        after = after or next((e for e in catalogue.EXERCISES if e.id == self.last), None)
        step = after.step_number if after and after.warm_up else None
        undone = [e for e in catalogue.EXERCISES if not self.of(e).passed
                  and (e.core or e is after or (e.warm_up and e.step_number == step))]
        begin = catalogue.EXERCISES.index(after) if after else 0
        return next((e for e in undone if catalogue.EXERCISES.index(e) >= begin), undone[0] if undone else None)

    def solution_open(self, exercise: Exercise) -> bool:
        """Whether the reader has earned the answer."""
        return self.of(exercise).passed or self.of(exercise).hints >= ALL_HINTS


def path(place: Workspace) -> Path:
    return place.mine / ".progress.json"


def load(place: Workspace) -> Progress:
    """The reader's progress in a clone; an unreadable file is put aside, `note` saying so."""
    file = path(place)
    try:
        return _parse(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Progress()
    except (ValueError, TypeError, AttributeError, KeyError):
        aside = next(p for n in range(1, 1000) if not (p := file.with_name(f".progress.unreadable-{n}.json")).exists())
        file.replace(aside)
        return Progress(note=f"{place.shown(file)} could not be read: it is kept as {place.shown(aside)}, and progress "
                             "starts afresh")


def _parse(data: dict) -> Progress:
    """Raises ValueError, TypeError, AttributeError or KeyError for anything but what `save` wrote."""
    records = {key: Record(bool(r["passed"]), int(r["checks"]), int(r["hints"]))
               for key, r in data["records"].items()}
    guesses = {key: float(value) for key, value in data["guesses"].items()}
    speeds = {key: (float(yours), float(ours)) for key, (yours, ours) in data["speeds"].items()}
    last = data.get("last")
    return Progress(records, guesses, speeds, last if isinstance(last, str) else None)


def save(place: Workspace, progress: Progress) -> None:
    data = {"records": {key: asdict(record) for key, record in progress.records.items()},
            "guesses": progress.guesses, "speeds": progress.speeds, "last": progress.last}
    write_atomically(path(place), json.dumps(data, indent=1, sort_keys=True).encode())
