"""The greatest."""

def choose_victim(running):
    return max(running)
