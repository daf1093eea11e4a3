"""The paged cache: the same answers as the contiguous one, wherever the blocks lie and whatever was in them before."""

from __future__ import annotations

import random

import pytest
import torch
from histories import HISTORIES, SPECS, Keys, attend_and_compare, check_history
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from minillm.cache.blocks import BlockPool
from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.errors import CacheError, PoolExhausted
from minillm.cache.paged import PagedKVCache, gather_blocks, slot_mapping
from minillm.cache.prefix import HashIndex
from minillm.cache.radix import RadixIndex
from minillm.cache.tables import BlockTables
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec

BACKENDS = ["reference", "sdpa"]


def new_cache(specs=SPECS, blocks: int = 20, size: int = 4, backend: str = "sdpa", index=None, order: int = 0,
              dtype: torch.dtype = torch.float64) -> PagedKVCache:
    """A cache whose free blocks lie in random order, full of NaN."""
    pool = BlockPool(blocks, size)
    random.Random(order).shuffle(pool.free)
    cache = PagedKVCache(specs, BlockTables(pool, index and index(pool)), dtype, backend=backend)
    for tensor in cache.store:
        tensor.fill_(float("nan"))
    return cache


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(0, 1000), st.sampled_from([1, 2, 3, 16]))
def test_any_history_attends_as_if_recomputed(backend, history, seed, size) -> None:
    check_history(new_cache(blocks=60, size=size, backend=backend, order=seed), SPECS, history, seed)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=12), st.integers(0, 1000))
def test_forks_never_see_each_others_tokens(history, seed) -> None:
    """Each entry forks the sequence at that place and appends to both; every layer must attend to its own past."""
    cache, make = new_cache(blocks=80), Keys(seed)
    texts = {0: [0, 1, 2]}
    attend_and_compare(cache, SPECS, texts[0], 3, cache.begin(make_batch([(0, texts[0], 0)])), make, 1e-12)
    fresh = 3
    for place, n in history:
        parent = sorted(texts)[place % len(texts)]
        child = len(texts)
        cache.tables.fork(parent, child)
        texts[child] = list(texts[parent])
        for seq in (parent, child):
            added = list(range(fresh, fresh + n))
            fresh += n
            step = cache.begin(make_batch([(seq, added, len(texts[seq]))]))
            texts[seq] += added
            attend_and_compare(cache, SPECS, texts[seq], n, step, make, 1e-12)


def greedy_text(model, cache, prompt, n: int, chunk: int = 100) -> list[int]:
    """n tokens after a prompt that is run in chunks."""
    text, done = list(prompt), cache.length(0)
    while len(text) < len(prompt) + n:
        new = text[done : done + chunk]
        logits = model(make_batch([(0, new, done)]), cache)
        done += len(new)
        if done == len(text):
            text.append(int(logits[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_model_writes_the_same_text_as_with_the_contiguous_cache(backend, size) -> None:
    model, prompt = tiny_model(), list(range(40, 61))
    expected = greedy_text(model, ContiguousKVCache(model.kv_specs(), 1, 90, torch.float64), prompt, 40)
    for order, chunk in ((0, 100), (1, 1), (2, 7)):
        cache = new_cache(model.kv_specs(), 90, size, backend, order=order)
        assert greedy_text(model, cache, prompt, 40, chunk) == expected


@pytest.mark.parametrize("index", [HashIndex, RadixIndex])
def test_a_prefix_hit_leaves_the_text_unchanged(index) -> None:
    model, prompt = tiny_model(), list(range(40, 61))
    cache = new_cache(model.kv_specs(), 60, 4, index=index)
    expected = greedy_text(model, cache, prompt, 20)
    cache.tables.register(0, prompt + expected, closing=True)
    cache.free(0)
    for longer in (prompt, prompt + expected[:9]):
        assert cache.tables.start(0, longer) >= len(longer) // 4 * 4 - 4
        assert greedy_text(model, cache, longer, 20 - len(longer) + 21)[:11] == expected[len(longer) - 21 :][:11]
        cache.free(0)


def test_blocks_of_a_step_are_copied_before_they_are_written() -> None:
    cache = new_cache()
    cache.begin(make_batch([(0, [1, 2], 0)]))
    for tensor in cache.store:
        tensor[:] = torch.arange(tensor.shape[1]).view(1, -1, 1, 1, 1)
    cache.tables.fork(0, 1)
    (old,) = cache.tables.tables[0]
    cache.begin(make_batch([(0, [3], 2), (1, [4], 2)]))
    (mine,), (other,) = cache.tables.tables[0], cache.tables.tables[1]
    assert {mine, other} != {old} and old in (mine, other)
    assert all((tensor[:, (mine, other)] == old).all() for tensor in cache.store)


def test_slots_and_gathering_by_hand() -> None:
    assert slot_mapping([7, 2], 2, 6, 4) == [30, 31, 8, 9]
    assert slot_mapping([7, 2], 4, 4, 4) == []
    blocks = torch.arange(8 * 4).view(8, 4, 1, 1)
    assert gather_blocks(blocks, torch.tensor([7, 2]), 6).flatten().tolist() == [28, 29, 30, 31, 8, 9]


def test_bytes_are_those_of_the_blocks() -> None:
    cache = new_cache(blocks=5, size=4)
    assert cache.bytes == 2 * 5 * 4 * 2 * (8 + 6) * 8  # layers, blocks, tokens, heads, k and v, float64


@pytest.mark.parametrize("rows, words", [
    ([(0, [1], 4)], "sequence 0 continues at token 4: expected 5"),
    ([(3, [1], 1)], "sequence 3 continues at token 1: expected 0"),
    ([(0, [1] * 76, 5)], "need 19 more blocks: expected at most 18"),
    ([(0, [1], 5), (1, [1] * 80, 0)], "need 20 more blocks: expected at most 18"),
])
def test_a_refused_step_changes_nothing(rows, words) -> None:
    cache = new_cache()
    cache.begin(make_batch([(0, [1] * 5, 0)]))
    before = dict(cache.tables.tables), dict(cache.tables.lengths), list(cache.pool.free), list(cache.pool.refs)
    with pytest.raises(CacheError, match=words):
        cache.begin(make_batch(rows))
    assert before == (cache.tables.tables, cache.tables.lengths, cache.pool.free, cache.pool.refs)


def test_keep_is_refused_without_side_effects() -> None:
    cache = new_cache(blocks=2)
    cache.begin(make_batch([(0, [1] * 8, 0)]))
    cache.tables.fork(0, 1)
    before = cache.tables.tables[0][:], list(cache.pool.refs)
    for positions in ([3, 1], [1, 1], [-1], [8]):
        with pytest.raises(CacheError, match="expected ascending ones below 8"):
            cache.keep(0, positions)
    with pytest.raises(PoolExhausted):  # the tokens would move inside blocks that the fork shares
        cache.keep(0, [0, 2])
    assert before == (cache.tables.tables[0], cache.pool.refs) and cache.length(0) == 8


def test_layers_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected the same in every layer"):
        new_cache([KVSpec(2, 8, 8, None, 1.0), KVSpec(1, 8, 8, None, 1.0)])


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="'nope'"):
        new_cache(backend="nope")
