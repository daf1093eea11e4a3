"""Too long for the second."""

DIAGNOSIS = "kept-out"


def smallest_crowd():
    return 2, [1, 2], [[1, 2, 3], [7, 8, 9]]
