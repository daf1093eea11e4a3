"""In the order of the line."""

DIAGNOSIS = "decode-stalls"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = []
    for tokens in uncomputed:
        counts.append(min(tokens, budget, chunk_size or tokens))
        budget -= counts[-1]
    return counts
