"""Prints it."""

DIAGNOSIS = "none-returned"


def slot_efficiency(lengths):
    print(sum(lengths) / (len(lengths) * max(lengths)))
