"""No block size."""

DIAGNOSIS = "exception"


def smallest_leak():
    return {"queries": 1, "keys": 2, "window": 1}
