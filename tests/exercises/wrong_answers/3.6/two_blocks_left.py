"""Two blocks left."""

DIAGNOSIS = "too-many-tokens"


def smallest_crowd():
    return 3, [1, 2, 3, 4], [[1, 2, 3, 4, 5], [9]]
