"""Takes the first at once."""

DIAGNOSIS = "starts-at-once"


def next_batch(arrivals, free_at, max_size, timeout):
    start = max(free_at, arrivals[0])
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)
