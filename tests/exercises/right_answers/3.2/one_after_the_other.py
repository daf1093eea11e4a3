"""One after the other."""

def next_batch(arrivals, free_at, max_size, timeout):
    start = max(free_at, arrivals[0] + timeout)
    size = 0
    for arrival in arrivals[:max_size]:
        if arrival > start:
            break
        size += 1
        if size == max_size:
            start = max(free_at, arrival)
    return [start, size]
