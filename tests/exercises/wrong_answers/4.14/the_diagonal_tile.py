"""The diagonal tile."""

DIAGNOSIS = "edge-between-tiles"


def smallest_leak():
    return {"queries": 2, "keys": 2, "block": 2, "window": 1}
