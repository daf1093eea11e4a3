"""Swallows the stop."""

from minillm.model.batch import make_batch

DIAGNOSIS = "stop-token-swallowed"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    pending, start = list(prompt_ids), 0
    for _ in range(max_tokens):
        token = choose(model(make_batch([(0, pending, start)], model.device), cache))
        if token in stop_ids:
            return
        yield token
        start, pending = start + len(pending), [token]
