"""The window is the text."""

DIAGNOSIS = "window-too-wide"


def smallest_leak():
    return {"queries": 1, "keys": 2, "block": 2, "window": 2}
