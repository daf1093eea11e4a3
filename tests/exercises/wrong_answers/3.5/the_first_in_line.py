"""The first in line."""

DIAGNOSIS = "the-first"


def choose_victim(running):
    return min(running, key=lambda seq: seq.order)
