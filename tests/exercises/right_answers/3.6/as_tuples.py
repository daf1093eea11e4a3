"""As tuples."""

def smallest_crowd():
    return (2, (1, 2), ((1, 2, 1), (1,)))
