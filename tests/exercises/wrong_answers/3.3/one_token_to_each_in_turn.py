"""One token to each in turn."""

DIAGNOSIS = "shared-evenly"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [int(tokens == 1) for tokens in uncomputed]
    left = budget - sum(counts)
    given = True
    while left > 0 and given:
        given = False
        for place, tokens in enumerate(uncomputed):
            if left > 0 and counts[place] < min(tokens, chunk_size or tokens):
                counts[place] += 1
                left -= 1
                given = True
    return counts
