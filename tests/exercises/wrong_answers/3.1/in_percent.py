"""In percent."""

DIAGNOSIS = "in-percent"


def slot_efficiency(lengths):
    return 100 * sum(lengths) / (len(lengths) * max(lengths))
