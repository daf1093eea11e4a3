"""A prefill."""

DIAGNOSIS = "too-many-tokens"


def smallest_leak():
    return {"queries": 3, "keys": 3, "block": 2, "window": 2}
