"""The first in the list."""

DIAGNOSIS = "first-in-the-list"


def choose_victim(running):
    return running[0]
