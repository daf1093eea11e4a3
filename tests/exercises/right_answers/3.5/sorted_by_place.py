"""Sorted by place."""

def choose_victim(running):
    return sorted(running, key=lambda seq: seq.order)[-1]
