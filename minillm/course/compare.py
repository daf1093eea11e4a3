"""Is what came what was expected, and if not, where do they part? In words and a few numbers, never a whole tensor.

torch is looked up only if something has imported it, so that exercises without tensors are checked without torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FEW = 8  # values that are shown one by one


@dataclass(frozen=True)
class Difference:
    """How two values differ.

    `kind`: none-returned, type, length, shape, dtype, value or input-changed; `where`: in words, or empty.
    """

    kind: str
    expected: str
    came: str
    where: str = ""


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def difference(expected: Any, came: Any, tolerance: float, names: Sequence[str] = ()) -> Difference | None:
    """None if `came` equals `expected`: numbers within `tolerance` (relative, or absolute below 1), all else exactly.

    `names` are those of a tuple's entries.
    """
    if came is None and expected is not None:
        return Difference("none-returned", show(expected, names), "None")
    if is_tensor(expected):
        return _tensor_difference(expected, came, tolerance)
    if isinstance(expected, (list, tuple)):
        return _sequence_difference(expected, came, tolerance, names)
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        if isinstance(came, bool) or not isinstance(came, (int, float)):
            return Difference("type", f"{show(expected)}, a number", _with_type(came))
        same = _close(expected, came, tolerance)
    else:
        same = type(came) is type(expected) and came == expected
    return None if same else Difference("value", show(expected), show(came))


def _close(expected: float, came: float, tolerance: float) -> bool:
    if not math.isfinite(expected) or (isinstance(expected, int) and isinstance(came, int)):
        return came == expected
    return abs(came - expected) <= tolerance * max(1e-3, abs(expected))


def _sequence_difference(expected: Sequence, came: Any, tolerance: float, names: Sequence[str]) -> Difference | None:
    wanted, got = show(expected, names), show(came, names)
    if not isinstance(came, (list, tuple)):
        return Difference("type", f"{wanted}, a {type(expected).__name__}", _with_type(came))
    if len(came) != len(expected):
        where = f"{len(came)} values came, {len(expected)} were expected" if len(expected) > FEW else ""
        return Difference("length", wanted, got, where)
    for index, (one, other) in enumerate(zip(expected, came)):
        found = difference(one, other, tolerance)
        if found:
            inner = f", {found.where}" if found.where else ""
            place = names[index].rstrip(":") if names else f"value {index}"
            if names and _values(expected) > FEW:
                told = (found.expected, found.came) if is_tensor(one) else (one, other)
                wanted, got = (_shortened(parts, names, index, shown) for parts, shown in zip((expected, came), told))
            elif is_tensor(one) and found.kind in ("shape", "dtype"):  # which the values shown do not say
                inner = f", {found.came} instead of {found.expected}"
            kind = "value" if found.kind == "none-returned" else found.kind
            return Difference(kind, wanted, got, place + inner)
    return None


def _values(parts: Sequence) -> int:
    """How many values the tensors among them have."""
    return sum(part.numel() for part in parts if is_tensor(part))


def _shortened(parts: Sequence, names: Sequence[str], index: int, shown: Any) -> str:
    """The part that differs, as `shown`, and those that are no tensors: all of the values would be too many to read."""
    kept = [i for i, part in enumerate(parts) if i == index or not is_tensor(part)]
    return show([shown if i == index else parts[i] for i in kept], [names[i] for i in kept])


def _tensor_difference(expected: Any, came: Any, tolerance: float) -> Difference | None:
    if not is_tensor(came):
        return Difference("type", f"{show(expected)}, a tensor", _with_type(came))
    if came.shape != expected.shape:
        return Difference("shape", f"shape {list(expected.shape)}", f"shape {list(came.shape)}")
    if came.dtype != expected.dtype:
        return Difference("dtype", _dtype(expected), _dtype(came))
    torch = sys.modules["torch"]
    if torch.allclose(came.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    wrong = ~torch.isclose(came.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if expected.numel() <= FEW:
        return Difference("value", show(expected), show(came), _rows(wrong))
    index = tuple(wrong.nonzero()[0].tolist())
    at = f"at {list(index)}: "
    return Difference("value", at + show(expected[index].item()), at + show(came[index].item()), _rows(wrong))


def _rows(wrong: Any) -> str:
    """Which rows (first dimension) hold a wrong value."""
    if wrong.dim() < 2 or wrong.shape[0] == 1:
        return ""
    bad = [i for i, row in enumerate(wrong) if bool(row.any())]
    if len(bad) == wrong.shape[0]:
        return f"all {len(bad)} rows differ"
    shown = ", ".join(map(str, bad[:FEW])) + (", …" if len(bad) > FEW else "")
    rows = f"rows {shown} differ" if len(bad) > 1 else f"row {shown} differs"
    return f"{rows}, of rows 0 to {wrong.shape[0] - 1}"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _with_type(value: Any) -> str:
    name = type(value).__name__
    return f"{show(value)}, {'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def show(value: Any, names: Sequence[str] = ()) -> str:
    """A value in a few words: numbers to six figures, at most eight of them, a large tensor as its shape."""
    if is_tensor(value):
        if value.numel() > FEW:
            return f"{_dtype(value)} tensor {list(value.shape)}"
        return show(value.tolist())
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (list, tuple)):
        if names and len(names) == len(value):
            shown = [entry if isinstance(entry, str) else show(entry) for entry in value]
            return ", ".join(f"{name} {entry}" for name, entry in zip(names, shown))
        inner = ", ".join(show(entry) for entry in value[:FEW])
        inner += f", … ({len(value)} in all)" if len(value) > FEW else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _float(value: float) -> str:
    """Six figures; a whole number keeps all of its digits."""
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:.1f}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{value:.6g}"
