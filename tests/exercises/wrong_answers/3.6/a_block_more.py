"""A block more."""

DIAGNOSIS = "room-for-all"


def smallest_crowd():
    return 3, [1, 2], [[1, 2, 3], [9]]
