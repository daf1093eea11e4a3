"""Real sizes."""

DIAGNOSIS = "too-many-tokens"


def smallest_leak():
    return {"queries": 512, "keys": 1000, "block": 64, "window": 100}
