"""Pads its input."""

DIAGNOSIS = "input-changed"


def slot_efficiency(lengths):
    wanted = sum(lengths)
    longest = max(lengths)
    for row in range(len(lengths)):
        lengths[row] = longest
    return wanted / sum(lengths)
