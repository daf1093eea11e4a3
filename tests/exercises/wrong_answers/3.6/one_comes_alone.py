"""One comes alone."""

DIAGNOSIS = "room-for-all"


def smallest_crowd():
    return 2, [1, 2], [[1, 2, 3]]
