"""Decodes put aside."""

def split_budget(uncomputed, budget, chunk_size=None):
    left = budget - uncomputed.count(1)
    counts = []
    for tokens in uncomputed:
        if tokens == 1:
            counts.append(1)
            continue
        count = min(tokens, left) if chunk_size is None else min(tokens, left, chunk_size)
        counts.append(count)
        left -= count
    return counts
