"""Keeps the first to itself."""

from minillm.model.batch import make_batch

DIAGNOSIS = "one-token-too-few"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    token = choose(model(make_batch([(0, list(prompt_ids), 0)], model.device), cache))
    start = len(prompt_ids)
    for _ in range(max_tokens - 1):
        token = choose(model(make_batch([(0, [token], start)], model.device), cache))
        start += 1
        yield token
        if token in stop_ids:
            return
