"""The contiguous cache against recomputation, and what it refuses, without side effects."""

from __future__ import annotations

import pytest
import torch
from histories import HISTORIES, SPECS, check_history
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.errors import CacheError
from minillm.model.batch import make_batch


def new_cache(max_seqs: int = 3, max_len: int = 16) -> ContiguousKVCache:
    cache = ContiguousKVCache(SPECS, max_seqs, max_len, torch.float64)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(float("nan"))  # reading a slot nobody wrote must show
    return cache


def state(cache: ContiguousKVCache) -> tuple:
    return dict(cache._slots), dict(cache._lengths), list(cache._free)


@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(0, 1000))
def test_any_history_attends_as_if_recomputed(history, seed) -> None:
    check_history(new_cache(), SPECS, history, seed)


def test_slots_come_back() -> None:
    cache = new_cache(max_seqs=2)
    for seq in range(10):
        cache.begin(make_batch([(seq, [1, 2], 0)]))
        cache.free(seq)
    assert len(cache._free) == 2


@pytest.mark.parametrize("rows, words", [
    ([(0, [1] * 17, 0)], ["sequence 0", "17", "16"]),
    ([(7, [1] * 12, 5)], ["sequence 7", "17", "16"]),
    ([(7, [1], 4)], ["sequence 7", "4", "5"]),
    ([(8, [1], 3)], ["sequence 8", "3", "expected 0"]),
    ([(7, [1], 5), (8, [1], 0), (9, [1], 0), (10, [1], 0)], ["3 new", "2 free"]),
    ([(8, [1], 0), (7, [1], 6)], ["sequence 7", "6", "5"]),
])
def test_a_refused_step_changes_nothing(rows, words) -> None:
    cache = new_cache()
    cache.begin(make_batch([(7, [1, 2, 3, 4, 5], 0)]))
    before = state(cache)
    with pytest.raises(CacheError) as error:
        cache.begin(make_batch(rows))
    assert state(cache) == before
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bad_rollbacks_are_refused_and_change_nothing() -> None:
    cache = new_cache()
    cache.begin(make_batch([(7, [1, 2, 3, 4, 5], 0)]))
    before = state(cache)
    for call in (lambda: cache.truncate(7, 6), lambda: cache.truncate(7, -1), lambda: cache.truncate(8, 0),
                 lambda: cache.keep(7, [0, 5]), lambda: cache.keep(7, [2, 1]), lambda: cache.keep(7, [1, 1]),
                 lambda: cache.keep(7, [-1, 2]), lambda: cache.free(8)):
        with pytest.raises(CacheError):
            call()
        assert state(cache) == before


@pytest.mark.parametrize("arguments, words", [
    ({"max_seqs": 0}, "max_seqs is 0: expected at least 1"),
    ({"max_len": -3}, "max_len is -3: expected at least 1"),
    ({"backend": "nope"}, "'nope'"),
])
def test_bad_sizes_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        ContiguousKVCache(SPECS, **{"max_seqs": 1, "max_len": 4, **arguments})


def test_no_cache_refuses_a_sequence_that_is_not_whole() -> None:
    with pytest.raises(CacheError, match="sequence 3 brings 2 of its 7 tokens"):
        NoCache(SPECS).begin(make_batch([(3, [1, 2], 5)]))


@pytest.mark.parametrize("rows, words", [
    ([], "no rows"),
    ([(0, [], 0)], "sequence 0 has no tokens"),
    ([(0, [1], -1)], "starts at -1"),
    ([(0, [1], 0), (0, [2], 1)], r"\[0, 0\]: expected each at most once"),
])
def test_a_batch_that_makes_no_sense_is_refused(rows, words) -> None:
    with pytest.raises(ValueError, match=words):
        make_batch(rows)
