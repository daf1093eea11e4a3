"""Writes into the logits."""

DIAGNOSIS = "input-changed"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    for line in logits:
        ordered, ids = line.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        line[ids[probabilities.cumsum(-1) - probabilities >= top_p]] = float("-inf")
    return logits
