"""Only the prompts."""

DIAGNOSIS = "no-crowd"


def smallest_crowd():
    return [[1, 2, 3], [9]]
