"""Short ones first."""

DIAGNOSIS = "shortest-first"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = budget - sum(counts)
    for place, tokens in sorted(enumerate(uncomputed), key=lambda pair: pair[1]):
        if tokens > 1:
            counts[place] = min(tokens, left, chunk_size or tokens)
            left -= counts[place]
    return counts
