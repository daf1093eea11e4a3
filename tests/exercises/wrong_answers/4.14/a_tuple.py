"""A tuple."""

DIAGNOSIS = "exception"


def smallest_leak():
    return 1, 2, 2, 1
