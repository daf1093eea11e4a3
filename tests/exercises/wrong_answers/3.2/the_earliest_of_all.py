"""The earliest of all."""

import math

DIAGNOSIS = "machine-not-free"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = min(free_at, full_at, arrivals[0] + timeout)
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)
