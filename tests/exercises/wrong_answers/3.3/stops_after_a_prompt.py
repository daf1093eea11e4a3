"""Stops after a prompt."""

DIAGNOSIS = "one-prompt-only"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = budget - sum(counts)
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            counts[place] = min(tokens, left, chunk_size or tokens)
            break
    return counts
