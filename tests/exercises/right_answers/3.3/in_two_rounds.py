"""In two rounds."""

def split_budget(uncomputed, budget, chunk_size=None):
    got = {}
    for decode in (True, False):
        for place, tokens in enumerate(uncomputed):
            if (tokens == 1) == decode:
                got[place] = min(tokens, budget) if decode else min(tokens, budget, chunk_size or budget)
                budget -= got[place]
    return tuple(got[place] for place in range(len(uncomputed)))
