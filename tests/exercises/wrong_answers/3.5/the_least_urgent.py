"""The least urgent."""

DIAGNOSIS = "priority-alone"


def choose_victim(running):
    return max(running, key=lambda seq: seq.priority)
