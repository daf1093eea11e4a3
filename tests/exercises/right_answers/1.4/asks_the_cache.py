"""Asks the cache."""

from minillm.model import batch


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    new, left = tuple(prompt_ids), max_tokens
    while left:
        step = batch.make_batch([(0, new, cache.length(0))], model.device)
        new = (choose(model(step, cache)),)
        yield new[0]
        left = 0 if new[0] in stop_ids else left - 1
