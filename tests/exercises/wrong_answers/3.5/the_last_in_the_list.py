"""The last in the list."""

DIAGNOSIS = "last-in-the-list"


def choose_victim(running):
    return running[-1]
