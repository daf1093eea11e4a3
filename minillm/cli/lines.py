"""What the commands share on a terminal: the console, tables, numbers with units, JSON, near names."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(stderr: bool = False, quiet: bool = False) -> Console:
    """A rich console on stdout or stderr: bold and colours on a terminal, plain text elsewhere."""
    from rich.console import Console

    return Console(stderr=stderr, quiet=quiet, highlight=False)


def table(*columns: str) -> Table:
    """A table without side walls: the first column to the left, the others (numbers) to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        made.add_column(name, justify="right" if index else "left", no_wrap=True)
    return made


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """One line for the person watching, on stderr so that stdout stays the result."""
    print(text, file=sys.stderr, flush=True)


def closest(name: str, names: Sequence[str]) -> str:
    """`'generate'` for 'genrate' or 'gen'; all the names, in order, when none is near."""
    bare = {n.lstrip("-"): n for n in names}  # the dashes that all flags begin with make none of them alike
    typed = name.lstrip("-")
    begun = [n for n in bare if len(typed) > 2 and n.startswith(typed)]
    near = begun or difflib.get_close_matches(typed, bare, n=3, cutoff=0.7)
    return " or ".join(f"'{bare[n]}'" for n in near[:3]) if near else "one of " + ", ".join(names)


def count_of(count: int, what: str) -> str:
    """`1 thread`, `2,048 tokens`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Bytes in the decimal units of datasheets: 538 MB, 13.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def bytes_of(flag: str, text: str) -> int:
    """What `size` prints, read: 512MB, 1.5 GB, 2GiB, or a number of bytes; of 15 digits at most, a petabyte.

    Raises ValueError for anything else.
    """
    units = {"": 1, "b": 1, **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)},
             **{f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}}
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) *([a-z]*)", text.strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"{flag} is '{text}': expected a size such as 512MB or 2GiB")
    return int(float(found[1]) * units[found[2]])


def duration(seconds: float) -> str:
    """Three figures and a unit: 820 µs, 45.1 ms, 1.29 s."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"
