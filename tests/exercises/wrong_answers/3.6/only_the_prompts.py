"""Only the prompts."""

DIAGNOSIS = "exception"


def smallest_crowd():
    return [[1, 2, 3], [9]]
