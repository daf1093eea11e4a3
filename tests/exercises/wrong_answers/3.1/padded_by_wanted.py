"""Padded by wanted."""

DIAGNOSIS = "padding-below"


def slot_efficiency(lengths):
    padded = sum(max(lengths) - length for length in lengths)
    return padded / sum(lengths)
