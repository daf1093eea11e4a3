"""The newest id."""

DIAGNOSIS = "the-newest-id"


def choose_victim(running):
    return max(running, key=lambda seq: seq.seq_id)
