"""One token."""

DIAGNOSIS = "window-too-wide"


def smallest_leak():
    return {"queries": 1, "keys": 1, "block": 2, "window": 1}
