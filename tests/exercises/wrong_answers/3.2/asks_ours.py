"""Asks ours."""

from minillm.serving import batching

DIAGNOSIS = "forbidden"


def next_batch(arrivals, free_at, max_size, timeout):
    return batching.next_batch(arrivals, free_at, max_size, timeout)
