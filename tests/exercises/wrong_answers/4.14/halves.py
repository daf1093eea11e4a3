"""Halves."""

DIAGNOSIS = "exception"


def smallest_leak():
    return {"queries": 1, "keys": 2, "block": 2, "window": 1.0}
