"""Prompts before decodes."""

DIAGNOSIS = "decode-stalls"


def split_budget(uncomputed, budget, chunk_size=None):
    counts = [0] * len(uncomputed)
    prompts = [place for place, tokens in enumerate(uncomputed) if tokens > 1]
    decodes = [place for place, tokens in enumerate(uncomputed) if tokens == 1]
    for place in prompts + decodes:
        counts[place] = min(uncomputed[place], budget, chunk_size or budget)
        budget -= counts[place]
    return counts
