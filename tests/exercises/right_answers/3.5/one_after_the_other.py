"""One after the other."""

def choose_victim(running):
    last = running[0]
    for seq in running[1:]:
        if seq.order > last.order:
            last = seq
    return last
