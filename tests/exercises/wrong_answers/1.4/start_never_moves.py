"""Start never moves."""

from minillm.model.batch import make_batch

DIAGNOSIS = "wrong-start"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    pending = list(prompt_ids)
    for _ in range(max_tokens):
        logits = model(make_batch([(0, pending, 0)], model.device), cache)
        token = choose(logits)
        yield token
        if token in stop_ids:
            return
        pending = [token]
