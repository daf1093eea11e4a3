"""Only the longest counts."""

DIAGNOSIS = "one-answer-counted"


def slot_efficiency(lengths):
    return max(lengths) / sum(lengths)
