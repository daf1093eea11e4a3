"""The latest arrival."""

DIAGNOSIS = "the-newest-id"


def choose_victim(running):
    return max(running, key=lambda seq: seq.order[1:])
