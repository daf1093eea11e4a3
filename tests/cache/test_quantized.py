"""The quantized cache: within its grid's error of the exact one, whatever its blocks held before."""

from __future__ import annotations

import random

import pytest
import torch
from histories import HISTORIES, SPECS, Keys, check_history
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llm, tiny_model

from minillm.cache import build
from minillm.cache.blocks import BlockPool
from minillm.cache.quantized import CODECS, QuantizedKVCache, find_places
from minillm.cache.tables import BlockTables
from minillm.decoding.sampling import SamplingParams
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec

# how far attention over values of about 1 may be off: a little over the error of K, through the softmax, and of V
TOLERANCE = {"int8": 0.05, "fp8": 0.3, "int4": 1.5, "int4-kivi": 1.5}


def spoil(cache: QuantizedKVCache, seed: int) -> None:
    """Random codes and scales that are no numbers: what an earlier holder may have left, or worse."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in cache.store:
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
        else:
            tensor.random_(generator=generator)


def new_cache(codec: str, blocks: int = 20, size: int = 4, order: int = 0, specs=SPECS) -> QuantizedKVCache:
    pool = BlockPool(blocks, size)
    random.Random(order).shuffle(pool.free)
    cache = QuantizedKVCache(specs, BlockTables(pool), torch.float64, codec=codec)
    spoil(cache, order)
    return cache


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=25, deadline=None)
@given(HISTORIES, st.integers(0, 1000), st.sampled_from([1, 3, 16]))
def test_any_history_attends_nearly_as_if_recomputed(codec, history, seed, size) -> None:
    check_history(new_cache(codec, 60, size, seed), SPECS, history, seed, tolerance=TOLERANCE[codec])


def read_back(cache: QuantizedKVCache, seq: int, layer: int = 0) -> list[torch.Tensor]:
    """K and V of a sequence as attention would see them."""
    table, length = torch.tensor(cache.tables.tables[seq]), cache.length(seq)
    return [cache._decode(kind, layer, table).flatten(0, 1)[:length] for kind in (0, 1)]


def write(cache: QuantizedKVCache, seq: int, k: torch.Tensor, v: torch.Tensor) -> None:
    step = cache.begin(make_batch([(seq, [0] * len(k), cache.length(seq))]))
    for layer in range(len(cache.specs)):
        cache._write(layer, step, k, v)


@pytest.mark.parametrize("codec, steps", [("int8", 127), ("int4", 15)])
def test_a_chunk_is_kept_within_half_a_step_of_its_head_and_block(codec, steps) -> None:
    cache = new_cache(codec)
    k, v = torch.randn(8, 2, 8, dtype=torch.float64), torch.randn(8, 2, 6, dtype=torch.float64)
    k[:4, 1] *= 100  # one head of one block is large: nobody else's error may grow with it
    write(cache, 0, k, v)
    for exact, kept in zip((k, v), read_back(cache, 0)):
        for tokens in (slice(0, 4), slice(4, 8)):
            for head in (0, 1):
                values = exact[tokens, head]
                span = values.abs().max() if codec == "int8" else values.max().clamp(min=0) - values.min().clamp(max=0)
                assert (kept[tokens, head] - values).abs().max() <= span / steps / 2 * 1.02


def test_a_large_token_coarsens_its_block_and_no_other() -> None:
    cache = new_cache("int8")
    k = torch.randn(7, 2, 8, dtype=torch.float64)
    write(cache, 0, k, k[..., :6])
    before = read_back(cache, 0)[0]
    write(cache, 0, k[:1] * 1000, k[:1, :, :6])
    after = read_back(cache, 0)[0]
    assert torch.equal(after[:4], before[:4])
    assert not torch.equal(after[4:7], before[4:7])


def test_tokens_one_by_one_end_near_those_of_a_chunk() -> None:
    """Encoding a block again for each token adds up to less than three times the error of encoding it once."""
    make = Keys(1)
    k = torch.stack([make(t, 0, 1, 2, 8) for t in range(64)])
    for codec in CODECS:
        errors = []
        for chunk in (64, 1):
            cache = new_cache(codec, 20, 16)
            for start in range(0, 64, chunk):
                write(cache, 0, k[start : start + chunk], k[start : start + chunk, :, :6])
            errors.append((read_back(cache, 0)[0] - k).square().mean().sqrt().item())
        assert 0 < errors[0] <= errors[1] <= 3 * errors[0], (codec, errors)


def test_one_large_channel_of_k_costs_the_others_less_with_channel_scales() -> None:
    k = torch.randn(64, 2, 8, dtype=torch.float64)
    k[..., 3] += 30
    others = [channel for channel in range(8) if channel != 3]
    errors = {}
    for codec in ("int4", "int4-kivi"):
        cache = new_cache(codec, 20, 16)
        write(cache, 0, k, k[..., :6])
        errors[codec] = (read_back(cache, 0)[0] - k)[..., others].abs().mean().item()
    assert errors["int4"] > 5 * errors["int4-kivi"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_fork_and_a_copy_leave_the_other_as_it_was(codec) -> None:
    cache = new_cache(codec)
    k = torch.randn(6, 2, 8, dtype=torch.float64)
    write(cache, 0, k, k[..., :6])
    before = read_back(cache, 0, layer=1)
    cache.fork(0, 1)
    write(cache, 1, 50 * k, 50 * k[..., :6])
    assert all(map(torch.equal, read_back(cache, 0, layer=1), before))


def test_places_by_hand() -> None:
    places = find_places(torch.tensor([9, 10, 28, 8]), 4)
    assert places.blocks.tolist() == [2, 7]
    assert places.rows.tolist() == [1, 2, 4, 0]
    assert places.written.tolist() == [[True, True, True, False], [True, False, False, False]]


@pytest.mark.parametrize("codec, one_head_and_block", [
    ("int8", 16 * 64 + 2), ("fp8", 16 * 64 + 2), ("int4", 16 * 32 + 4),
    ("int4-kivi", (16 * 32 + 64 * 4 + 16 * 32 + 16 * 4) / 2)])
def test_bytes_by_hand(codec, one_head_and_block) -> None:
    """bfloat16, 2 layers, 3 heads of 64: one byte or half a byte a value, and the scales."""
    specs = [KVSpec(3, 64, 64, None, 0.125)] * 2
    assert build.block_bytes(specs, 16, codec, torch.bfloat16) == 2 * 2 * 3 * one_head_and_block
    assert build.block_bytes(specs, 16, "auto", torch.bfloat16) == 2 * 2 * 3 * 16 * 64 * 2
    made = build.paged_cache(specs, 5, 16, codec, torch.bfloat16)
    assert made.bytes == 5 * build.block_bytes(specs, 16, codec, torch.bfloat16)


@pytest.mark.parametrize("codec", CODECS)
def test_a_model_runs_in_its_own_dtype(codec) -> None:
    model = tiny_model(dtype=torch.bfloat16)
    cache = build.paged_cache(model.kv_specs(), 8, 4, codec, torch.bfloat16)
    exact = build.paged_cache(model.kv_specs(), 8, 4, "auto", torch.bfloat16)
    batch = make_batch([(0, list(range(40, 60)), 0)])
    got, expected = model(batch, cache), model(batch, exact)
    assert got.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(got.float(), expected.float()).item() > 0.9


@pytest.mark.parametrize("codec", CODECS)
def test_an_llm_serves_from_it_and_finds_prefixes(codec) -> None:
    llm = tiny_llm(kv_cache_dtype=codec, block_size=4)
    assert isinstance(llm.cache, QuantizedKVCache)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first, again = (llm.generate("abcdefghijklm", params)[0] for _ in range(2))
    assert again.num_cached_tokens == 12 and len(first.outputs[0].token_ids) == 8
    assert llm.cache.pool.available == llm.cache.pool.num_blocks


def test_fewer_bytes_hold_more_blocks() -> None:
    sizes = {name: tiny_llm(kv_cache_dtype=name, kv_cache_memory_bytes=60_000).cache.pool.num_blocks
             for name in build.KV_DTYPES}
    assert sizes["auto"] < sizes["int4-kivi"] < sizes["int4"] and sizes["auto"] * 7 < sizes["int8"] == sizes["fp8"]


def test_bad_codecs_are_refused() -> None:
    tables = BlockTables(BlockPool(2, 4))
    with pytest.raises(ValueError, match="codec is 'int3': expected one of int8, fp8, int4, int4-kivi"):
        QuantizedKVCache(SPECS, tables, codec="int3")
    with pytest.raises(ValueError, match="heads keep 7 values: expected an even number"):
        QuantizedKVCache([KVSpec(1, 7, 8, None, 1.0)], tables, codec="int4")
    with pytest.raises(ValueError, match="kv_cache_dtype is 'int3'"):
        tiny_llm(kv_cache_dtype="int3")
