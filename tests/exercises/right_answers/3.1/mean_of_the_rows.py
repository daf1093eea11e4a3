"""Mean of the rows."""

def slot_efficiency(lengths):
    longest = max(lengths)
    return sum(length / longest for length in lengths) / len(lengths)
