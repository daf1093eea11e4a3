"""Whole prompts only."""

DIAGNOSIS = "all-or-nothing"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = budget - sum(counts)
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            if tokens <= left:
                counts[place] = tokens
            left -= counts[place]
    return counts
