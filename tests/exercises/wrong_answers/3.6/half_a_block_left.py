"""Half a block left."""

DIAGNOSIS = "no-hit"


def smallest_crowd():
    return 2, [1], [[1, 2, 3]]
