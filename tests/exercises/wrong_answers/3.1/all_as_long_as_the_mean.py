"""All as long as the mean."""

DIAGNOSIS = "mean-for-longest"


def slot_efficiency(lengths):
    mean = sum(lengths) / len(lengths)
    return sum(lengths) / (len(lengths) * mean)
