"""More queries than keys."""

DIAGNOSIS = "exception"


def smallest_leak():
    return {"queries": 3, "keys": 2, "block": 2, "window": 1}
