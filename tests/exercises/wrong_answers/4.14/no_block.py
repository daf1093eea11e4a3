"""No block."""

DIAGNOSIS = "tiles-of-one-key"


def smallest_leak():
    return {"queries": 1, "keys": 2, "block": 1, "window": 1}
