"""Beam search against one that recomputes everything, and the memory that its beams share."""

from __future__ import annotations

import pytest
import torch
from tiny import END, tiny_llm, tiny_model

from minillm.cache.base import NoCache
from minillm.cache.build import paged_cache
from minillm.cache.errors import PoolExhausted
from minillm.decoding import beam
from minillm.decoding.beam import BeamSearchParams
from minillm.model.batch import make_batch

PROMPT = list(range(60, 81))


def plain_search(model, prompt, width: int, steps: int, end_ids) -> list[tuple[float, list[int]]]:
    """Beam search with no cache: every beam is run whole, every step."""
    running, done = [(0.0, [])], []
    for _ in range(steps):
        found = []
        for score, text in running:
            batch = make_batch([(0, prompt + text, 0)])
            logprobs = model(batch, NoCache(model.kv_specs()))[0].double().log_softmax(-1)
            found += [(score + float(logprobs[t]), [*text, t]) for t in range(len(logprobs))]
        found.sort(key=lambda entry: -entry[0])
        best = found[: 2 * width]
        done += [entry for entry in best if entry[1][-1] in end_ids]
        running = [entry for entry in best if entry[1][-1] not in end_ids][:width]
    return sorted(done + running, key=lambda entry: -entry[0] / len(entry[1]))[:width]


def new_cache(model, blocks: int = 60):
    return paged_cache(model.kv_specs(), blocks, 4, dtype=torch.float64)


@pytest.mark.parametrize(("width", "seed", "end_ids"), [(1, 0, ()), (4, 0, ()), (4, 1, range(80)), (3, 2, range(40))])
def test_beams_are_those_of_a_search_that_recomputes(width, seed, end_ids) -> None:
    model = tiny_model(seed)
    cache = new_cache(model)
    found = beam.search(model, cache, PROMPT, BeamSearchParams(width, 7), end_ids)
    expected = plain_search(model, PROMPT, width, 7, end_ids)
    assert [one.token_ids for one in found] == [text for _, text in expected]
    assert [one.cumulative_logprob for one in found] == pytest.approx([score for score, _ in expected])
    assert cache.pool.available == 60 and not cache.tables.tables


def test_a_search_that_only_ends_ends() -> None:
    model = tiny_model()
    found = beam.search(model, new_cache(model), PROMPT, BeamSearchParams(2, 9), range(257))
    assert [len(one.token_ids) for one in found] == [1, 1]


def test_beams_share_their_prompt() -> None:
    """Four beams over 21 prompt tokens in blocks of 4: 5 shared blocks, not 20."""
    model = tiny_model()
    cache = new_cache(model)
    least = [60]
    allocate = cache.pool.allocate

    def watched(count: int = 1) -> list[int]:
        blocks = allocate(count)
        least[0] = min(least[0], cache.pool.available)
        return blocks

    cache.pool.allocate = watched
    beam.search(model, cache, PROMPT, BeamSearchParams(4, 12), ())
    assert 60 - least[0] <= 5 + 4 * 4  # each beam fills at most ceil(33 / 4) - 5 of its own
    assert cache.pool.available == 60


def test_a_pool_that_is_too_small_is_left_as_it_was() -> None:
    model = tiny_model()
    cache = new_cache(model, blocks=8)
    with pytest.raises(PoolExhausted):
        beam.search(model, cache, PROMPT, BeamSearchParams(4, 30), ())
    assert cache.pool.available == 8 and not cache.tables.tables


def test_llm_gives_texts_and_length_penalty_orders_them() -> None:
    llm = tiny_llm()
    (found,) = llm.beam_search("hello there", BeamSearchParams(3, 8, ignore_eos=True))
    assert len(found) == 3 and all(len(one.token_ids) == 8 for one in found)
    assert found[0].text == llm.tokenizer.decode(found[0].token_ids)
    (short,) = llm.beam_search("hello there", BeamSearchParams(3, 8, length_penalty=0.0))
    assert [b.cumulative_logprob for b in short] == sorted((b.cumulative_logprob for b in short), reverse=True)
    assert END not in found[0].token_ids


@pytest.mark.parametrize("arguments", [{"beam_width": 0}, {"beam_width": 2, "max_tokens": 0}, {"beam_width": True}])
def test_bad_parameters_are_refused(arguments) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        BeamSearchParams(**arguments)
