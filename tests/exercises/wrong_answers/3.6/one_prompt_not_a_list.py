"""One prompt not a list."""

DIAGNOSIS = "no-crowd"


def smallest_crowd():
    return 2, [1, 2], [1, 2, 3]
