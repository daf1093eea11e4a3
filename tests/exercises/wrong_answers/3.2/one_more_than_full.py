"""One more than full."""

import math

DIAGNOSIS = "full-one-too-late"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size] if len(arrivals) > max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)
