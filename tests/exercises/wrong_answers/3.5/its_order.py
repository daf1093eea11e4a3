"""Its order."""

DIAGNOSIS = "not-a-sequence"


def choose_victim(running):
    return max(seq.order for seq in running)
