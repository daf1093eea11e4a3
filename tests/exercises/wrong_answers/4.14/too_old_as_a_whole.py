"""Too old as a whole."""

DIAGNOSIS = "edge-between-tiles"


def smallest_leak():
    return {"queries": 1, "keys": 3, "block": 2, "window": 1}
