"""Runs the last token."""

from minillm.model.batch import make_batch

DIAGNOSIS = "extra-step"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    logits = model(make_batch([(0, list(prompt_ids), 0)], model.device), cache)
    start = len(prompt_ids)
    for _ in range(max_tokens):
        token = choose(logits)
        yield token
        logits = model(make_batch([(0, [token], start)], model.device), cache)
        start += 1
        if token in stop_ids:
            return
