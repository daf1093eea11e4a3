"""Forgets the steps."""

DIAGNOSIS = "steps-forgotten"


def slot_efficiency(lengths):
    return sum(lengths) / len(lengths)
