"""Start counts the new token."""

from minillm.model.batch import make_batch

DIAGNOSIS = "wrong-start"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    text = list(prompt_ids)
    pending = text
    for step in range(max_tokens):
        start = len(text) if step else 0
        token = choose(model(make_batch([(0, pending, start)], model.device), cache))
        yield token
        if token in stop_ids:
            return
        text = [*text, token]
        pending = [token]
