"""Spares who left before."""

DIAGNOSIS = "spares-who-was-sent-back"


def choose_victim(running):
    fewest = min(seq.num_preemptions for seq in running)
    return max(seq for seq in running if seq.num_preemptions == fewest)
