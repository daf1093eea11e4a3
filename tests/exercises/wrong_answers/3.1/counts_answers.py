"""Counts answers."""

DIAGNOSIS = "answers-not-tokens"


def slot_efficiency(lengths):
    return sum(length == max(lengths) for length in lengths) / len(lengths)
