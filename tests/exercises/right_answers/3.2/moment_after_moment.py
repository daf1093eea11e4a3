"""Moment after moment."""

def next_batch(arrivals, free_at, max_size, timeout):
    over = arrivals[0] + timeout
    for now in sorted([*arrivals, free_at, over]):
        there = [arrival for arrival in arrivals if arrival <= now]
        if now >= free_at and there and (now >= over or len(there) >= max_size):
            return now, len(there[:max_size])
    raise AssertionError("the first one's time is always over some day")
