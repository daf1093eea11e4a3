"""Prefill first."""

from minillm.model.batch import make_batch


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    logits = model(make_batch([(0, list(prompt_ids), 0)], model.device), cache)
    for count in range(1, max_tokens + 1):
        token = choose(logits)
        yield token
        if token in stop_ids or count == max_tokens:
            return
        logits = model(make_batch([(0, [token], cache.length(0))], model.device), cache)
