"""An empty prompt."""

DIAGNOSIS = "no-token"


def smallest_crowd():
    return 2, [1, 2], [[1, 2, 3], []]
