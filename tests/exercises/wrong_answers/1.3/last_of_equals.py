"""Last of equals."""

DIAGNOSIS = "highest-of-equals"


def greedy(logits):
    return logits.sort(dim=-1, stable=True).indices[:, -1]


def top_p_filter(logits, top_p):
    raise NotImplementedError("exercise 1.3")
