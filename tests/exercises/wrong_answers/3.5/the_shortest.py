"""The shortest."""

DIAGNOSIS = "the-shortest"


def choose_victim(running):
    return min(running, key=lambda seq: len(seq.token_ids))
