"""Prints it."""

DIAGNOSIS = "none-returned"


def smallest_crowd():
    print(2, [1, 2], [[1, 2, 3], [9]])
