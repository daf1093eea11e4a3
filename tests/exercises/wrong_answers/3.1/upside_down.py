"""Upside down."""

DIAGNOSIS = "upside-down"


def slot_efficiency(lengths):
    return len(lengths) * max(lengths) / sum(lengths)
