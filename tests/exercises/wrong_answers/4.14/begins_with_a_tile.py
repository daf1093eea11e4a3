"""Begins with a tile."""

DIAGNOSIS = "edge-between-tiles"


def smallest_leak():
    return {"queries": 1, "keys": 4, "block": 2, "window": 2}
