"""Half written."""

DIAGNOSIS = "not-written"


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
