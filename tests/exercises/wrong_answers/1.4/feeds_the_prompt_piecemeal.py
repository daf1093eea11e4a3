"""Feeds the prompt piecemeal."""

from minillm.model.batch import make_batch

DIAGNOSIS = "prompt-in-pieces"


def cached_tokens(model, cache, prompt_ids, choose, max_tokens, stop_ids):
    for place, token in enumerate(prompt_ids):
        logits = model(make_batch([(0, [token], place)], model.device), cache)
    place = len(prompt_ids)
    for count in range(max_tokens):
        token = choose(logits)
        yield token
        if token in stop_ids or count + 1 == max_tokens:
            return
        logits = model(make_batch([(0, [token], place)], model.device), cache)
        place += 1
