"""Those of the first moment."""

import math

DIAGNOSIS = "only-the-first"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= arrivals[0] for arrival in arrivals)
    return start, min(there, max_size)
