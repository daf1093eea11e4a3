"""Takes them out."""

import math

DIAGNOSIS = "input-changed"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= start for arrival in arrivals)
    del arrivals[: min(there, max_size)]
    return start, min(there, max_size)
