"""Looks down the rows."""


DIAGNOSIS = "argmax-over-rows"


def greedy(logits):
    return logits.max(dim=0).indices


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
