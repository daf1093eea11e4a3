"""Is sure to be full."""

DIAGNOSIS = "may-never-be-full"


def next_batch(arrivals, free_at, max_size, timeout):
    full_at = arrivals[max_size - 1]
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)
