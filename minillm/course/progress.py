"""What the reader has passed, how many hints they took, what they guessed. Kept in $MINILLM_HOME/progress.json.

A file that cannot be read is renamed aside, and that is said once: progress starts afresh rather than stop anything.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from minillm.course import catalogue
from minillm.course.exercise import Exercise
from minillm.course.workspace import write_atomically
from minillm.measure import hardware

ALL_HINTS = 3


@dataclass
class Record:
    """One exercise: passed or not, how often checked, hints seen."""

    passed: bool = False
    checks: int = 0
    hints: int = 0


@dataclass
class Progress:
    """Everything kept. `speeds`: tokens per second of the reader's own engine and of ours, by step."""

    records: dict[str, Record] = field(default_factory=dict)
    guesses: dict[str, float] = field(default_factory=dict)
    speeds: dict[str, tuple[float, float]] = field(default_factory=dict)
    note: str | None = None

    def of(self, exercise: Exercise) -> Record:
        return self.records.setdefault(exercise.id, Record())

    def next(self, after: Exercise | None = None) -> Exercise | None:
        """The first core exercise not passed, or None; after a warm-up, the next warm-up of its step."""
        core = [e for e in catalogue.EXERCISES if e.core]
        begun = [e for e in catalogue.of_step(after.step_number) if e.warm_up] if after and after.warm_up else []
        return next((e for e in [*begun, *core] if not self.of(e).passed), None)

    def solution_open(self, exercise: Exercise) -> bool:
        """Whether the reader has earned the answer."""
        return self.of(exercise).passed or self.of(exercise).hints >= ALL_HINTS


def path() -> Path:
    return hardware.home() / "progress.json"


def load() -> Progress:
    """The reader's progress; an unreadable file is put aside, `note` saying so."""
    file = path()
    try:
        return _parse(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Progress()
    except (ValueError, TypeError, AttributeError, KeyError):
        aside = next(p for n in range(1, 1000) if not (p := file.with_name(f"progress.unreadable-{n}.json")).exists())
        file.replace(aside)
        return Progress(note=f"{file.name} could not be read: it is kept as {aside}, and progress starts afresh")


def _parse(data: dict) -> Progress:
    """Raises ValueError, TypeError, AttributeError or KeyError for anything but what `save` wrote."""
    records = {key: Record(bool(r["passed"]), int(r["checks"]), int(r["hints"]))
               for key, r in data["records"].items()}
    guesses = {key: float(value) for key, value in data["guesses"].items()}
    speeds = {key: (float(yours), float(ours)) for key, (yours, ours) in data["speeds"].items()}
    return Progress(records, guesses, speeds)


def save(progress: Progress) -> None:
    data = {"records": {key: asdict(record) for key, record in progress.records.items()},
            "guesses": progress.guesses, "speeds": progress.speeds}
    write_atomically(path(), json.dumps(data, indent=1, sort_keys=True).encode())
