"""Takes those to come."""

import math

DIAGNOSIS = "not-there-yet"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    return start, min(len(arrivals), max_size)
