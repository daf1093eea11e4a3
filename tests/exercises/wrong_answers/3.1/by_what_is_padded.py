"""By what is padded."""

DIAGNOSIS = "padding-below"


def slot_efficiency(lengths):
    padded = sum(max(lengths) - length for length in lengths)
    return sum(lengths) / padded
