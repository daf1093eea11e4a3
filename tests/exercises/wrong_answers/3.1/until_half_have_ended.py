"""Until half have ended."""

import statistics

DIAGNOSIS = "median-for-longest"


def slot_efficiency(lengths):
    return sum(lengths) / (len(lengths) * statistics.median(lengths))
