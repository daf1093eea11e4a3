"""One chunk for all prompts."""

DIAGNOSIS = "chunk-for-all"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = budget - sum(counts)
    if chunk_size is not None:
        left = min(left, chunk_size)
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            counts[place] = min(tokens, left)
            left -= counts[place]
    return counts
