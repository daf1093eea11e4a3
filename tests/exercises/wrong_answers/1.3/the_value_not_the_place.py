"""The value not the place."""

DIAGNOSIS = "the-logit-itself"


def greedy(logits):
    return logits.max(dim=-1).values


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
