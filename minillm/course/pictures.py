"""A picture in letters of what a kernel loaded and stored, the reader's beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minillm.course import tracing
from minillm.course.tracing import ROOM, Seen, Trace

LINES = 12
WIDE = 32  # letters of a row
RUNS = 4  # runs of offsets that are told one by one
SIGNS = {".": "untouched", "r": "loaded", "R": "loaded again", "w": "stored", "W": "stored again",
         "b": "loaded and stored"}


def draw(ours: Callable[..., Any], theirs: Callable[..., Any], args: dict[str, Any]) -> list[str]:
    """The lines of a picture: what the reader's launcher loads and stores of each tensor, and what ours does."""
    with tracing.record() as wanted:
        ours(**args)
    with tracing.record() as came:
        try:
            theirs(**args)
        except Exception:
            pass  # the result says what was raised; what was touched until then is drawn
    return compare(wanted, came)


def compare(wanted: Trace, came: Trace) -> list[str]:
    """At most LINES lines: a head, a row for each row of each tensor, what was touched outside, the letters used."""
    if not came.launches:
        return []
    left, right = _picture(came), _picture(wanted)
    rows = [(label, left.get(label, ""), right.get(label, "")) for label in {**right, **left}]
    outside = [line for seen in came.seen.values() for line in _outside(seen)]
    if not outside and all(yours == expected for _, yours, expected in rows):
        return ["Each load and store is where it should be: it is the values in between that are not."]
    room = LINES - 2 - len(outside)
    if len(rows) > room:
        rows = [row for row in rows if row[1] != row[2]]
    if len(rows) > room:
        rows = [*rows[: room - 1], ("…", "", "")]
    rows = [("", "yours", "expected"), *rows] if rows else []
    label, yours = (max((len(row[part]) for row in rows), default=0) for part in (0, 1))
    lines = [f"{a:<{label}}   {b:<{yours}}   {c}".rstrip() for a, b, c in rows]
    letters = {letter for row in rows[1:] for part in row[1:] for letter in part}
    legend = "   ".join(f"{sign} {meaning}" for sign, meaning in SIGNS.items() if sign in letters)
    return [*lines, *outside, *([legend] if legend else [])]


def _picture(trace: Trace) -> dict[str, str]:
    """The rows of all tensors, by name: x for one dimension, x[0] for two."""
    return {label: row for seen in trace.seen.values() for label, row in _rows(seen).items()}


def _rows(seen: Seen) -> dict[str, str]:
    """A letter for each element, row by row."""
    shape = seen.places.shape
    if 0 in shape:
        return {}
    drawn = {}
    for index, row in zip(np.ndindex(*shape[:-1]), seen.places.reshape(-1, shape[-1])):
        letters = "".join(_letter(seen.loads[place], seen.stores[place]) for place in row[:WIDE])
        label = f"{seen.name}[{', '.join(map(str, index))}]" if index else seen.name
        drawn[label] = letters + ("…" if len(row) > WIDE else "")
    return drawn


def _letter(loads: int, stores: int) -> str:
    if loads and stores:
        return "b"
    sign = "r" if loads else "w" if stores else "."
    return sign.upper() if loads + stores > 1 else sign


def _outside(seen: Seen) -> list[str]:
    """A line for each kind of access to what is no element, between rows too: its offsets from the first element."""
    told = []
    for done, counts in (("loaded", seen.loads), ("stored", seen.stores)):
        offsets = np.flatnonzero((counts > 0) & ~seen.inside) - ROOM
        if len(offsets):
            told.append(f"{done} outside {seen.name}: at offset{'s' if len(offsets) > 1 else ''} {_runs(offsets)}")
    return told


def _runs(offsets: np.ndarray) -> str:
    """Numbers in ascending order, neighbours as a run: -1, 3 to 5."""
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    told = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:RUNS]]
    return ", ".join([*told, "…"] if len(runs) > RUNS else told)
