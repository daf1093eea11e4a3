"""One chunk for the step."""

DIAGNOSIS = "chunk-for-all"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = max(0, min(budget, chunk_size or budget) - sum(counts))
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            counts[place] = min(tokens, left)
            left -= counts[place]
    return counts
