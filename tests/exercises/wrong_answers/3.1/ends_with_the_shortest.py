"""Ends with the shortest."""

DIAGNOSIS = "shortest-for-longest"


def slot_efficiency(lengths):
    return sum(lengths) / (len(lengths) * min(lengths))
