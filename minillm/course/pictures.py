"""A picture in letters of what a kernel loaded and stored, the reader's beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minillm.course import tracing
from minillm.course.tracing import Seen, Trace

LINES = 12
WIDE = 32  # letters of a row
SHOWN_OUTSIDE = 8  # letters of what lies around a row
SIGNS = {".": "untouched", "r": "loaded", "R": "loaded again", "w": "stored", "W": "stored again",
         "b": "loaded and stored", "x": "outside"}


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
    """At most LINES lines: a head, a row for each row of each tensor, and the letters used."""
    if not came.launches:
        return []
    left, right = _picture(came), _picture(wanted)
    rows = [(label, left.get(label, ""), right.get(label, "")) for label in {**right, **left}]
    if all(yours == expected for _, yours, expected in rows):
        return ["Each load and store is where it should be: it is the values in between that are not."]
    room = LINES - 2
    if len(rows) > room:
        rows = [row for row in rows if row[1] != row[2]]
    if len(rows) > room:
        rows = [*rows[: room - 1], ("…", "", "")]
    rows = [("", "yours", "expected"), *rows]
    label, yours = (max(len(row[part]) for row in rows) for part in (0, 1))
    lines = [f"{a:<{label}}   {b:<{yours}}   {c}".rstrip() for a, b, c in rows]
    letters = {letter for row in rows[1:] for part in row[1:] for letter in part}
    return [*lines, "   ".join(f"{sign} {meaning}" for sign, meaning in SIGNS.items() if sign in letters)]


def _picture(trace: Trace) -> dict[str, str]:
    """The rows of all tensors, by name: x for one dimension, x[0] for two."""
    return {label: row for seen in trace.seen.values() for label, row in _rows(seen).items()}


def _rows(seen: Seen) -> dict[str, str]:
    """A letter for each element, row by row; behind a row, and before the first, x for what was touched there."""
    shape = seen.places.shape
    if 0 in shape:
        return {}
    rows = seen.places.reshape(-1, shape[-1])
    touched = np.flatnonzero(seen.loads + seen.stores)
    ends = [*rows[1:, 0], max([*touched, *seen.places.flat]) + 1]  # where the next row begins
    drawn = {}
    for index, row, end in zip(np.ndindex(*shape[:-1]), rows, ends):
        letters = "".join(_letter(seen.loads[place], seen.stores[place]) for place in row[:WIDE])
        letters += "…" if len(row) > WIDE else ""
        behind = _outside(seen, row[-1] + 1, end).rstrip()
        behind = behind if len(behind) <= SHOWN_OUTSIDE else behind[:SHOWN_OUTSIDE] + "…"
        before = _outside(seen, row[0] - SHOWN_OUTSIDE, row[0]).lstrip() if not drawn else ""
        drawn[f"{seen.name}[{', '.join(map(str, index))}]" if index else seen.name] = f"{before}{letters}{behind}"
    return drawn


def _letter(loads: int, stores: int) -> str:
    if loads and stores:
        return "b"
    sign = "r" if loads else "w" if stores else "."
    return sign.upper() if loads + stores > 1 else sign


def _outside(seen: Seen, begin: int, end: int) -> str:
    """x for each place of a stretch that was touched and is no element, a blank for the others."""
    touched = (seen.loads + seen.stores > 0) & ~seen.inside
    return "".join("x" if t else " " for t in touched[begin:end])
