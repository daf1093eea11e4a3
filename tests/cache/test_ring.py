"""The ring against recomputation with a window mask: what it must still know, what it must refuse, what it costs."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from histories import Keys, attend_and_compare
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import END, tiny_model

from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.errors import CacheError
from minillm.cache.ring import RingKVCache
from minillm.decoding.generate import batch_tokens, cached_tokens
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec
from minillm.model.transformer import Transformer

BACKENDS = ("sdpa", "reference")
WINDOWS = ((3,), (5,), (3, 5), (5, 1, 3))
ACTIONS = ("add", "add", "add", "drop", "cut", "thin", "keep", "free")
# chunks of up to 15 tokens, where the longest ring is 8
HISTORIES = st.lists(st.tuples(st.integers(0, 2), st.one_of(st.integers(0, 4), st.integers(0, 15)),
                               st.sampled_from(ACTIONS)), min_size=1, max_size=25)


def specs_of(windows) -> list[KVSpec]:
    return [KVSpec(2, 8, 6, window, 0.35) for window in windows]


def new_cache(windows=(3, 5), slack: int = 2, max_seqs: int = 3, backend: str = "sdpa") -> RingKVCache:
    cache = RingKVCache(specs_of(windows), max_seqs, slack, torch.float64, backend=backend)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(float("nan"))  # reading a slot nobody wrote must show
    return cache


def state(cache: RingKVCache) -> tuple:
    """All of it, K and V to the bit (NaN equals no NaN)."""
    bits = [tensor.view(torch.int64).tolist() for tensor in (*cache.k, *cache.v)]
    return copy.deepcopy((cache._slots, cache._lengths, cache._oldest, cache._free)), bits


def refused(cache: RingKVCache, call, words=()) -> None:
    before = state(cache)
    with pytest.raises(CacheError) as error:
        call()
    assert state(cache) == before
    assert all(word in str(error.value) for word in words), str(error.value)


class Rings:
    """Which token lies in which place, written down for one sequence: says what a rollback may ask for."""

    def __init__(self, windows, slack: int) -> None:
        self.windows = windows
        self.rings = [[None] * (window + slack) for window in windows]
        self.text: list[int] = []

    def add(self, tokens: list[int]) -> None:
        for token in tokens:
            for ring in self.rings:
                ring[len(self.text) % len(ring)] = token
            self.text.append(token)

    def can_keep(self, positions: list[int]) -> bool:
        return all(ring[p % len(ring)] == self.text[p] for window, ring in zip(self.windows, self.rings)
                   for p in positions[max(0, len(positions) - window + 1) :])

    def keep(self, positions: list[int]) -> None:
        for ring in self.rings:
            before = list(ring)
            for place, p in enumerate(positions):
                if before[p % len(ring)] == self.text[p]:
                    ring[place % len(ring)] = self.text[p]
        self.text = [self.text[p] for p in positions]


def rolled_back(action: str, n: int, length: int) -> list[int]:
    """The positions that an action keeps."""
    if action == "drop":
        return list(range(max(0, length - n)))
    if action == "cut":
        return list(range(min(n, length)))
    if action == "thin":  # as a checked token tree leaves it: every other one of the last n
        return [p for p in range(length) if p < length - n or p % 2]
    return sorted({i * 2 % max(length, 1) for i in range(min(n, length))})


def check_history(windows, slack: int, backend: str, history, seed: int) -> None:
    cache, make, fresh = new_cache(windows, slack, backend=backend), Keys(seed), 0
    known: dict[int, Rings] = {}
    for seq, n, action in history:
        if action == "add" and n > 0:
            rings = known.setdefault(seq, Rings(windows, slack))
            step = cache.begin(make_batch([(seq, list(range(fresh, fresh + n)), len(rings.text))]))
            rings.add(list(range(fresh, fresh + n)))
            fresh += n
            attend_and_compare(cache, cache.specs, rings.text, n, step, make, 1e-12)
        elif action == "free" and seq in known:
            cache.free(seq)
            del known[seq]
        elif action != "add" and seq in known:
            positions = rolled_back(action, n, len(known[seq].text))
            call = ((lambda seq=seq, kept=positions: cache.keep(seq, kept)) if action in ("thin", "keep") else
                    (lambda seq=seq, kept=positions: cache.truncate(seq, len(kept))))
            if known[seq].can_keep(positions):
                call()
                known[seq].keep(positions)
            else:
                refused(cache, call, [f"sequence {seq}", f"slack of {slack}"])
        assert cache.length(seq) == (len(known[seq].text) if seq in known else 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("windows", WINDOWS)
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3), HISTORIES, st.integers(0, 1000))
def test_any_history_attends_as_full_attention_in_a_window(windows, backend, slack, history, seed) -> None:
    check_history(windows, slack, backend, history, seed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_long_text_cut_back_and_continued(backend) -> None:
    """By hand: as far back as it goes, twice, growing past its old end in between, in every phase of the ring."""
    for length in range(8, 24):
        history = [(0, length, "add"), (0, 3, "drop"), (0, 1, "drop"), (0, 1, "add"), (0, 2, "drop"), (0, 7, "add"),
                   (0, 2, "thin"), (0, 1, "add"), (0, 0, "cut"), (0, 9, "add")]
        check_history((3, 5), 2, backend, history, length)


def test_how_far_back_it_goes() -> None:
    """Rings of 5 and 7 after 20 tokens: from token 17 on, one looks back to 15 or 13, the oldest held; not before."""
    cache = new_cache((3, 5), slack=2)
    cache.begin(make_batch([(7, [1] * 20, 0)]))
    refused(cache, lambda: cache.truncate(7, 16), ["sequence 7 cut to 16 tokens: expected 0 or 17 to 20"])
    cache.truncate(7, 17)
    refused(cache, lambda: cache.truncate(7, 16), ["expected 0 or 17 to 17"])  # what is overwritten stays so
    refused(cache, lambda: cache.keep(7, [*range(12), 14, 15, 16]), ["sequence 7", "the last 4", "13 or later"])
    cache.keep(7, [*range(10), 13, 14, 15, 16])
    refused(cache, lambda: cache.truncate(7, 13), ["expected 0 or 14 to 14"])
    cache.truncate(7, 0)
    cache.begin(make_batch([(7, [1] * 5, 0)]))
    cache.truncate(7, 1)  # nothing is overwritten in a ring that is not full


def test_bytes_do_not_grow_with_the_text() -> None:
    cache, make = new_cache((3, 5), slack=2), Keys(0)
    assert cache.bytes == 3 * ((3 + 2) + (5 + 2)) * 2 * (8 + 6) * 8
    before = cache.bytes
    text: list[int] = []
    for size in (1, 40, *[1] * 30):
        step = cache.begin(make_batch([(0, [1] * size, len(text))]))
        text += range(len(text), len(text) + size)
        attend_and_compare(cache, cache.specs, text, size, step, make, 1e-12)
        assert cache.bytes == before == sum(t.untyped_storage().nbytes() for t in (*cache.k, *cache.v))


def tiny_mistral(windows) -> Transformer:
    model = tiny_model()
    config = dataclasses.replace(model.config, architecture="mistral", windows=windows)
    windowed = Transformer(config, dtype=torch.float64)
    windowed.load_state_dict(model.state_dict())
    return windowed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("windows", [(5, 5), (3, 5)])
def test_a_model_writes_the_same_text(windows, backend) -> None:
    model, prompt = tiny_mistral(windows), list(b"the ring goes round and round")
    specs = model.config.kv_specs()
    caches = [ContiguousKVCache(specs, 1, 96, torch.float64), RingKVCache(specs, 1, 0, torch.float64, backend=backend)]
    texts = [list(cached_tokens(model, cache, prompt, lambda logits: int(logits.argmax()), 60, ())) for cache in caches]
    assert texts[0] == texts[1] and len(set(texts[0])) > 5
    everything = ContiguousKVCache(tiny_model().config.kv_specs(), 1, 96, torch.float64)
    whole = list(cached_tokens(tiny_model(), everything, prompt, lambda logits: int(logits.argmax()), 60, ()))
    assert whole != texts[0]  # the window matters to this text


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_ragged_batch_writes_the_same_texts(backend) -> None:
    model = tiny_mistral((3, 5))
    specs = model.config.kv_specs()
    prompts = {4: list(b"a"), 9: list(b"a window of three"), 2: list(b"five")}
    texts = []
    for cache in (ContiguousKVCache(specs, 3, 96, torch.float64), RingKVCache(specs, 3, 1, torch.float64,
                                                                             backend=backend)):
        steps = batch_tokens(model, cache, prompts, lambda logits, seqs: logits.argmax(-1).tolist(),
                             lambda seq, token: token == END or cache.length(seq) > 20 + seq)  # noqa: B023
        texts.append(list(steps))
    assert texts[0] == texts[1] and len(texts[0]) > 15


def test_slots_come_back() -> None:
    cache = new_cache(max_seqs=2)
    for seq in range(10):
        cache.begin(make_batch([(seq, [1] * 9, 0)]))
        cache.free(seq)
    assert len(cache._free) == 2 and not cache._oldest


@pytest.mark.parametrize("rows, words", [
    ([(7, [1], 4)], ["sequence 7", "4", "5"]),
    ([(8, [1], 3)], ["sequence 8", "3", "expected 0"]),
    ([(7, [1], 5), (8, [1], 0), (9, [1], 0), (10, [1], 0)], ["3 new", "2 free"]),
    ([(8, [1], 0), (7, [1], 6)], ["sequence 7", "6", "5"]),
])
def test_a_refused_step_changes_nothing(rows, words) -> None:
    cache = new_cache()
    cache.begin(make_batch([(7, [1, 2, 3, 4, 5], 0)]))
    refused(cache, lambda: cache.begin(make_batch(rows)), words)


@pytest.mark.parametrize("call, words", [
    (lambda c: c.truncate(7, 6), "sequence 7 cut to 6 tokens: expected 0 to 5"),
    (lambda c: c.truncate(7, -1), "sequence 7 cut to -1 tokens: expected 0 to 5"),
    (lambda c: c.truncate(8, 0), "sequence 8 is not in the cache"),
    (lambda c: c.keep(7, [0, 5]), "ascending ones below 5"),
    (lambda c: c.keep(7, [2, 1]), "ascending ones below 5"),
    (lambda c: c.keep(7, [1, 1]), "ascending ones below 5"),
    (lambda c: c.keep(7, [-1, 2]), "ascending ones below 5"),
    (lambda c: c.keep(8, []), "sequence 8 is not in the cache"),
    (lambda c: c.free(8), "sequence 8 is not in the cache"),
])
def test_bad_rollbacks_are_refused_and_change_nothing(call, words) -> None:
    cache = new_cache()
    cache.begin(make_batch([(7, [1, 2, 3, 4, 5], 0)]))
    refused(cache, lambda: call(cache), [words])


@pytest.mark.parametrize("arguments, words", [
    ({"max_seqs": 0}, "max_seqs is 0: expected at least 1"),
    ({"slack": -1}, "slack is -1: expected at least 0"),
    ({"backend": "nope"}, "'nope'"),
    ({"specs": specs_of((3, None))}, "layer 1 has the window None: expected at least 1"),
    ({"specs": specs_of((0,))}, "layer 0 has the window 0: expected at least 1"),
])
def test_bad_sizes_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        RingKVCache(**{"specs": specs_of((3,)), "max_seqs": 1, **arguments})
