"""Begins the wait anew."""

DIAGNOSIS = "timeout-of-the-last"


def next_batch(arrivals, free_at, max_size, timeout):
    until = arrivals[0] + timeout
    for count, arrival in enumerate(arrivals, start=1):
        if arrival > until:
            break
        until = arrival if count == max_size else arrival + timeout
        if count == max_size:
            break
    start = max(free_at, until)
    return start, min(max_size, sum(arrival <= start for arrival in arrivals))
