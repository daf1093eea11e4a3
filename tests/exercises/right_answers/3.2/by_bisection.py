"""By bisection."""

import bisect


def next_batch(arrivals, free_at, max_size, timeout):
    start = arrivals[0] + timeout
    if len(arrivals) >= max_size:
        start = min(start, arrivals[max_size - 1])
    if start < free_at:
        start = free_at
    return start, min(max_size, bisect.bisect_right(arrivals, start))
