"""Asks ours."""

from minillm.serving import batching

DIAGNOSIS = "forbidden"


def slot_efficiency(lengths):
    return batching.slot_efficiency(lengths)
