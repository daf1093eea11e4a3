"""The smallest."""

DIAGNOSIS = "the-first"


def choose_victim(running):
    return sorted(running)[0]
