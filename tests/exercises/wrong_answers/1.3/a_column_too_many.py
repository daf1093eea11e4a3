"""A column too many."""

DIAGNOSIS = "keeps-a-dimension"


def greedy(logits):
    return logits.topk(1).indices


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
