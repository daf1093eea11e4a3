"""Forgets the rows."""

DIAGNOSIS = "rows-forgotten"


def slot_efficiency(lengths):
    return sum(lengths) / max(lengths)
