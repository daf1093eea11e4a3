"""Always half."""


DIAGNOSIS = None


def greedy(logits):
    return logits.argmax(dim=-1)


def top_p_filter(logits, top_p):
    count = max(1, logits.shape[-1] // 2)
    least = logits.topk(count, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, float("-inf"))
