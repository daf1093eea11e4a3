"""The latest of all."""

DIAGNOSIS = "waits-for-both"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[min(max_size, len(arrivals)) - 1]
    start = max(free_at, full_at, arrivals[0] + timeout)
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)
