"""Not at the beginning."""

DIAGNOSIS = "no-hit"


def smallest_crowd():
    return 3, [8, 9, 1, 2], [[1, 2, 3], [4]]
