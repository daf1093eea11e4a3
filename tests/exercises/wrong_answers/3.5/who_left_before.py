"""Who left before."""

DIAGNOSIS = "picks-on-who-was-sent-back"


def choose_victim(running):
    return max(running, key=lambda seq: (seq.num_preemptions, seq.order))
