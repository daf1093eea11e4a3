"""One more key."""

DIAGNOSIS = "too-many-tokens"


def smallest_leak():
    return {"queries": 1, "keys": 3, "block": 2, "window": 2}
