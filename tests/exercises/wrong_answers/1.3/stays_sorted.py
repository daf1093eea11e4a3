"""Stays sorted."""

DIAGNOSIS = "not-unsorted"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    ordered, _ = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    reached = probabilities.cumsum(-1) - probabilities >= top_p
    return ordered.masked_fill(reached, float("-inf"))
