"""The longest and latest."""

DIAGNOSIS = "the-longest"


def choose_victim(running):
    return max(running, key=lambda seq: (len(seq.token_ids), seq.order))
