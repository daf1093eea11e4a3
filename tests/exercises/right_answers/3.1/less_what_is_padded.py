"""Less what is padded."""

def slot_efficiency(lengths):
    slots = len(lengths) * max(lengths)
    padded = sum(max(lengths) - length for length in lengths)
    return 1 - padded / slots
