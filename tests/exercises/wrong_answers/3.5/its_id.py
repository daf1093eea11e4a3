"""Its id."""

DIAGNOSIS = "not-a-sequence"


def choose_victim(running):
    return max(running, key=lambda seq: seq.order).seq_id
