"""Prints it."""

DIAGNOSIS = "none-returned"


def smallest_leak():
    print({"queries": 1, "keys": 2, "block": 2, "window": 1})
