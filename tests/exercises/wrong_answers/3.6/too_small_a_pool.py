"""Too small a pool."""

DIAGNOSIS = "never-fits"


def smallest_crowd():
    return 1, [1, 2], [[1, 2, 3], [9]]
