"""Recomputes everything."""

from minillm.model.batch import make_batch

DIAGNOSIS = "everything-again"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    text = list(prompt_ids)
    for _ in range(max_tokens):
        token = choose(model(make_batch([(0, text, 0)], model.device), cache))
        cache.free(0)
        yield token
        if token in stop_ids:
            break
        text.append(token)
