"""Hands out at the end."""

from minillm.model.batch import make_batch

DIAGNOSIS = "not-streamed"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    tokens, pending, start = [], list(prompt_ids), 0
    while len(tokens) < max_tokens:
        token = choose(model(make_batch([(0, pending, start)], model.device), cache))
        start, pending = start + len(pending), [token]
        tokens.append(token)
        if token in stop_ids:
            break
    return tokens
