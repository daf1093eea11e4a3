"""Numbers that somebody gives, checked where they enter: one line with the name, what it was and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable

MOST_SECONDS = 1e9  # thirty years: sleeping that long is allowed, and a clock that has got there still tells µs apart


def is_number(value: object) -> bool:
    """Whether this is a finite int or float (True and False are not, nor is an int too large for a float)."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_number(name: str, value: object, good: Callable[[float], bool], expected: str) -> None:
    """Raises ValueError for what is no finite number, or not a good one."""
    if not (is_number(value) and good(value)):
        raise ValueError(f"{name} is {value!r}: expected {expected}")


def check_seconds(name: str, value: object) -> None:
    """Raises ValueError for what is no time span: negative, no number, or longer than anybody waits."""
    check_number(name, value, lambda seconds: 0 <= seconds <= MOST_SECONDS, "seconds, 0 to 1e9")


def check_whole(name: str, value: object, least: int | None = None, most: int | None = None, why: str = "") -> None:
    """Raises ValueError for what is no int (True and False are not), or out of range; `why` says where it ends."""
    if type(value) is int and (least is None or value >= least) and (most is None or value <= most):
        return
    limits = "" if least is None else f", at least {least}" if most is None else f", {least} to {most}"
    raise ValueError(f"{name} is {value!r}: expected a whole number{limits}{why}")
