"""The cheapest of the last."""

DIAGNOSIS = "the-shortest"


def choose_victim(running):
    return min(running[::-1], key=lambda seq: seq.num_computed_tokens)
