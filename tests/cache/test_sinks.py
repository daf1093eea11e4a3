"""A cache of sinks and a window against attention over the whole text with the mask, and what it must refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from histories import Keys
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from minillm.attention import variants
from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.errors import CacheError
from minillm.cache.ring import RingKVCache
from minillm.cache.sinks import SinkKVCache
from minillm.decoding.generate import cached_tokens
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec

SPECS = [KVSpec(2, 8, 6, None, 0.35)] * 2
ACTIONS = ("add", "add", "add", "cut", "keep", "free")


def new_cache(window: int = 3, sinks: int = 2, max_seqs: int = 3) -> SinkKVCache:
    cache = SinkKVCache(SPECS, max_seqs, window, sinks, torch.float64)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(math.nan)  # reading a place nobody wrote must show
    return cache


def attend_and_compare(cache: SinkKVCache, texts: dict[int, list[int]], added: dict[int, int], make: Keys) -> None:
    """A step of several rows, against every row's whole text under the mask."""
    step = cache.begin(make_batch([(seq, texts[seq][-n:], len(texts[seq]) - n) for seq, n in added.items()]))
    for layer, spec in enumerate(SPECS):
        q, k, v = ({seq: torch.stack([make(t, layer, kind, heads, width) for t in texts[seq]]) for seq in added}
                   for kind, heads, width in ((0, 4, 8), (1, 2, 8), (2, 2, 6)))
        new = [torch.cat([kind[seq][-n:] for seq, n in added.items()]) for kind in (q, k, v)]
        got = cache.attend(layer, *new, step).split(list(added.values()))
        for out, seq in zip(got, added):
            expected = variants.with_sinks(q[seq][-len(out) :], k[seq], v[seq], spec.scale, cache.window, cache.sinks)
            torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


@settings(max_examples=80)
@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2**16),
       st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from(ACTIONS)), min_size=1, max_size=25))
def test_any_history_attends_as_if_everything_were_kept(window, sinks, seed, history) -> None:
    cache, make, texts = new_cache(window, sinks), Keys(seed), {}
    longest, fresh = {}, 0
    for seq, n, action in history:
        text = texts.get(seq, [])
        lost = longest.get(seq, 0) > window + sinks
        if action == "add" and n:
            texts[seq], fresh = [*text, *range(fresh, fresh + n)], fresh + n
            attend_and_compare(cache, texts, {seq: n}, make)
            longest[seq] = max(longest.get(seq, 0), len(texts[seq]))
        elif action == "free" and seq in texts:
            cache.free(seq)
            del texts[seq], longest[seq]
        elif action == "cut" and seq in texts:
            n = min(n, len(text))
            if lost and n not in (0, len(text)):
                with pytest.raises(CacheError, match=f"expected 0 or {len(text)}, the rest is overwritten"):
                    cache.truncate(seq, n)
            else:
                cache.truncate(seq, n)
                texts[seq], longest[seq] = text[:n], longest[seq] if n else 0
        elif action == "keep" and seq in texts:
            kept = list(range(0, len(text), 2))
            if lost:
                with pytest.raises(CacheError, match="tokens are overwritten"):
                    cache.keep(seq, kept)
            else:
                cache.keep(seq, kept)
                texts[seq], longest[seq] = text[::2], len(kept)
        assert cache.length(seq) == len(texts.get(seq, []))


def test_a_ragged_step_gives_each_row_its_own() -> None:
    cache, make = new_cache(), Keys(1)
    texts = {4: [1], 9: list(range(10, 30)), 2: [5, 6, 7]}
    attend_and_compare(cache, texts, {seq: len(text) for seq, text in texts.items()}, make)
    texts = {seq: [*text, 40 + seq] for seq, text in texts.items()}
    texts[2] = [*texts[2], *range(60, 75)]
    attend_and_compare(cache, texts, {9: 1, 4: 1, 2: 16}, make)


def texts_of(model, caches) -> list[list[int]]:
    prompt = list(b"the first few tokens stay, the last ones pass")
    return [list(cached_tokens(model, cache, prompt, lambda logits: int(logits.argmax()), 40, ())) for cache in caches]


def test_a_model_runs_with_a_window_and_sinks_in_memory_that_does_not_grow() -> None:
    model = tiny_model()
    specs = model.kv_specs()
    window, narrow, wide = (SinkKVCache(specs, 1, w, s, torch.float64) for w, s in ((12, 0), (12, 3), (120, 3)))
    before = narrow.bytes
    shape = model.config.shape()
    assert before == 15 * shape.kv_bytes_per_token(8)
    whole, plain, sunk, all_of_it = texts_of(model, [ContiguousKVCache(specs, 1, 120, torch.float64), window, narrow,
                                                     wide])
    assert narrow.bytes == before and narrow.length(0) > 80
    assert all_of_it == whole
    assert len({tuple(whole), tuple(plain), tuple(sunk)}) == 3  # what is forgotten matters to this text


def test_a_window_alone_breaks_a_real_model_and_four_sinks_mend_it(smollm2) -> None:
    """The MIT license, which the model nearly knows by heart: nats a token from the 150th on, 48 tokens in sight."""
    ids = smollm2.tokenizer.encode((Path(__file__).parents[2] / "LICENSE").read_text())

    def loss(window: int, sinks: int) -> float:
        cache = SinkKVCache(smollm2.model.kv_specs(), 1, window, sinks)
        logprobs = smollm2.model(make_batch([(0, ids, 0)], all_logits=True), cache).log_softmax(-1)[:-1]
        return -logprobs.gather(1, torch.tensor(ids[1:])[:, None])[150:].mean().item()

    assert loss(len(ids), 0) < 0.8  # 0.59 when this was written, with everything in sight
    assert loss(48, 0) > 3  # 5.55
    assert loss(44, 4) < 1.5  # 1.03


def test_without_sinks_it_is_the_ring_of_a_window() -> None:
    model = tiny_model()
    ring = RingKVCache([replace(spec, window=12) for spec in model.kv_specs()], 1, dtype=torch.float64)
    ours, theirs = texts_of(model, [SinkKVCache(model.kv_specs(), 1, 12, 0, torch.float64), ring])
    assert ours == theirs


def test_a_refusal_changes_nothing() -> None:
    cache = new_cache(max_seqs=1)
    attend_and_compare(cache, {0: [1, 2, 3]}, {0: 3}, Keys(0))
    for rows, words in (([(0, [4], 2)], "continues at token 2: expected 3"),
                        ([(0, [4], 3), (1, [4], 0)], "1 new sequences find 0 free slots")):
        with pytest.raises(CacheError, match=words):
            cache.begin(make_batch(rows))
    with pytest.raises(CacheError, match="sequence 7 is not in the cache: expected one of"):
        cache.free(7)
    with pytest.raises(CacheError, match="expected ascending ones below 3"):
        cache.keep(0, [2, 1])
    with pytest.raises(CacheError, match="cut to 4 tokens: expected 0 to 3"):
        cache.truncate(0, 4)
    attend_and_compare(cache, {0: [1, 2, 3, 4]}, {0: 1}, Keys(0))


@pytest.mark.parametrize("changes, words", [
    ({"max_seqs": 0}, "max_seqs is 0"), ({"window": 0}, "window is 0"), ({"sinks": -1}, "sinks is -1"),
    ({"specs": [KVSpec(1, 8, 8, 4, 1.0)]}, "layer 0 has the window 4: expected none")])
def test_sizes_that_make_no_sense_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SinkKVCache(**{"specs": SPECS, "max_seqs": 1, "window": 4, **changes})
