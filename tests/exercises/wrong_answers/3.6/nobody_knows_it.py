"""Nobody knows it."""

DIAGNOSIS = "no-hit"


def smallest_crowd():
    return 2, [1, 2], [[3], [4]]
