"""The other comes first."""

def smallest_crowd():
    return 2, [7, 7], [[5], [7, 7, 7]]
