"""What is wasted."""

DIAGNOSIS = "wasted-share"


def slot_efficiency(lengths):
    longest = max(lengths)
    wasted = sum(longest - length for length in lengths)
    return wasted / (len(lengths) * longest)
