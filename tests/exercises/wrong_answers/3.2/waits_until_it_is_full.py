"""Waits until it is full."""

DIAGNOSIS = "no-timeout"


def next_batch(arrivals, free_at, max_size, timeout):
    size = min(max_size, len(arrivals))
    start = max(free_at, arrivals[size - 1])
    return start, size
