"""A token too many."""

DIAGNOSIS = "too-many-tokens"


def smallest_crowd():
    return 2, [1, 2, 3], [[1, 2, 3], [9]]
