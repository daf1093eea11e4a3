"""The three loops are one function: the same tokens, however they are computed."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model

from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.generate import batch_tokens, cached_tokens, naive_tokens

PROMPTS = [[5, 9, 200], [17], list(range(40, 71)), [5, 9, 200, 7]]


def choose(logits: torch.Tensor) -> int:
    assert logits.shape == (1, 257)
    return int(logits[0].argmax())


def cache(model, rows: int = 1) -> ContiguousKVCache:
    return ContiguousKVCache(model.kv_specs(), rows, 96, model.dtype)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_naive_cached_and_batched_give_the_same_tokens(seed: int) -> None:
    """Exactly, in float64, for prompts of 1 to 31 tokens in one ragged batch."""
    model = tiny_model(seed)
    naive = [list(naive_tokens(model, NoCache(model.kv_specs()), p, choose, 20, ())) for p in PROMPTS]
    cached = [list(cached_tokens(model, cache(model), p, choose, 20, ())) for p in PROMPTS]
    batched = [[] for _ in PROMPTS]
    prompts = dict(enumerate(PROMPTS))
    for step in batch_tokens(model, cache(model, 4), prompts, lambda logits, rows: logits.argmax(-1).tolist(),
                             lambda row, token: len(batched[row]) == 20):
        for row, token in step:
            batched[row].append(token)
    assert naive == cached == batched
    assert len({tuple(tokens) for tokens in naive}) > 1


def test_a_stop_token_is_the_last_and_max_tokens_the_limit() -> None:
    model = tiny_model()
    free = list(cached_tokens(model, cache(model), [5, 9], choose, 12, ()))
    assert len(free) == 12
    stop = free[4]
    expected = free[: free.index(stop) + 1]
    for loop, kept in ((naive_tokens, NoCache(model.kv_specs())), (cached_tokens, cache(model))):
        assert list(loop(model, kept, [5, 9], choose, 12, (stop,))) == expected


def test_the_cache_holds_all_but_the_last_token() -> None:
    model, kept = tiny_model(), None
    kept = cache(model)
    tokens = list(cached_tokens(model, kept, [5, 9, 200], choose, 6, ()))
    assert kept.length(0) == 3 + len(tokens) - 1


def test_the_prompt_is_processed_once_and_then_one_token_a_step() -> None:
    """What makes it n and not n²: count the tokens that go through the model."""
    model, sizes = tiny_model(), []
    original = model.embed
    model.embed = lambda batch: (sizes.append(len(batch.token_ids)), original(batch))[1]
    list(cached_tokens(model, cache(model), [5, 9, 200], choose, 5, ()))
    assert sizes == [3, 1, 1, 1, 1]
    sizes.clear()
    list(naive_tokens(model, NoCache(model.kv_specs()), [5, 9, 200], choose, 5, ()))
    assert sizes == [3, 4, 5, 6, 7]


def test_rows_that_are_done_leave_the_batch_and_free_their_slot() -> None:
    model, kept, widths = tiny_model(), None, []
    kept = cache(model, 3)
    lengths = [1, 4, 2]
    counts = [0, 0, 0]
    prompts = dict(enumerate(PROMPTS[:3]))
    for step in batch_tokens(model, kept, prompts, lambda logits, rows: logits.argmax(-1).tolist(),
                             lambda row, token: counts[row] == lengths[row]):
        widths.append(len(step))
        for row, _ in step:
            counts[row] += 1
    assert widths == [3, 2, 1, 1]
    assert [kept.length(row) for row in range(3)] == [0, 0, 0]
