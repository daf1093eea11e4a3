"""The same to each."""

DIAGNOSIS = "left-over-lost"


def split_budget(uncomputed, budget, chunk_size=None):
    prompts = sum(tokens > 1 for tokens in uncomputed)
    decodes = len(uncomputed) - prompts
    share = (budget - decodes) // prompts if prompts else 0
    return [min(tokens, share, chunk_size or tokens) if tokens > 1 else 1 for tokens in uncomputed]
