"""The one with most blocks."""

DIAGNOSIS = "the-longest"


def choose_victim(running):
    return max(running, key=lambda seq: seq.num_computed_tokens)
