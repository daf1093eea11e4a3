"""Leaves who came meanwhile."""

import math

DIAGNOSIS = "who-came-meanwhile"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    ready = min(full_at, arrivals[0] + timeout)
    start = max(free_at, ready)
    there = sum(arrival <= ready for arrival in arrivals)
    return start, min(there, max_size)
