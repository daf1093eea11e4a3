"""Drops the fraction."""

DIAGNOSIS = "rounded-down"


def slot_efficiency(lengths):
    return sum(lengths) // (len(lengths) * max(lengths))
