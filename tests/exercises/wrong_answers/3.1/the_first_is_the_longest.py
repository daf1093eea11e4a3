"""The first is the longest."""

DIAGNOSIS = "last-for-longest"


def slot_efficiency(lengths):
    return sum(lengths) / (len(lengths) * lengths[0])
