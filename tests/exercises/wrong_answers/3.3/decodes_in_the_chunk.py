"""Decodes in the chunk."""

DIAGNOSIS = "decodes-in-the-chunk"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    chunk = (chunk_size or budget + counts.count(1)) - counts.count(1)
    left = budget - sum(counts)
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            counts[place] = max(0, min(tokens, left, chunk))
            left -= counts[place]
    return counts
