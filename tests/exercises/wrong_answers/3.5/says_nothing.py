"""Says nothing."""

DIAGNOSIS = "none-returned"


def choose_victim(running):
    max(running, key=lambda seq: seq.order)
