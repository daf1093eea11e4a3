"""The cache that hands its blocks to the kernels: any history attends as if recomputed, and nothing is gathered."""

from __future__ import annotations

import random

import pytest
import torch
from histories import HISTORIES, check_history
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm import measure
from minillm.attention import reference
from minillm.cache import build
from minillm.cache.blocks import BlockPool
from minillm.cache.tables import BlockTables
from minillm.cache.triton_paged import TritonPagedKVCache
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec
from minillm.model.layers import apply_rope

DEVICE = measure.best_device()
SPECS = [KVSpec(2, 64, 64, None, 0.125), KVSpec(2, 64, 64, 3, 0.125)]


def new_cache(blocks: int = 60, size: int = 4, order: int = 0, specs=SPECS) -> TritonPagedKVCache:
    """A cache whose free blocks lie in random order, full of NaN."""
    pool = BlockPool(blocks, size)
    random.Random(order).shuffle(pool.free)
    cache = TritonPagedKVCache(specs, BlockTables(pool), torch.float32, DEVICE)
    for tensor in cache.store:
        tensor.fill_(float("nan"))
    return cache


class Narrow:
    """The cache, with q, k, v of float64 that the histories make put in as float32 on its device."""

    def __init__(self, cache: TritonPagedKVCache) -> None:
        self.cache = cache

    def __getattr__(self, name: str):
        return getattr(self.cache, name)

    def attend(self, layer, q, k, v, step) -> torch.Tensor:
        return self.cache.attend(layer, *(x.float().to(DEVICE) for x in (q, k, v)), step).double().cpu()


@settings(max_examples=5)
@given(HISTORIES, st.integers(0, 1000), st.sampled_from([1, 3, 16]))
def test_any_history_attends_as_if_recomputed(history, seed, size) -> None:
    check_history(Narrow(new_cache(size=size, order=seed)), SPECS, history, seed, tolerance=1e-5)


def mixed_batch():
    """A prompt, a decode, a chunk behind cached tokens, and another decode."""
    return make_batch([(0, [1] * 5, 0), (1, [1], 9), (2, [1] * 3, 4), (3, [1], 0)], DEVICE)


def test_a_step_of_prompts_and_decodes_gives_each_row_its_own() -> None:
    cache, generator = new_cache(), torch.Generator().manual_seed(0)
    cached = {seq: [torch.randn(n, 2, 64, generator=generator).to(DEVICE) for _ in "kv"] for seq, n in ((1, 9), (2, 4))}
    for seq, (k, v) in cached.items():
        step = cache.begin(make_batch([(seq, [1] * len(k), 0)], DEVICE))
        for layer in (0, 1):
            cache.attend(layer, torch.zeros(len(k), 4, 64, device=DEVICE), k, v, step)
    batch = mixed_batch()
    step = cache.begin(batch)
    assert step.decode.tokens.tolist() == [5, 9] and step.prefill.tokens.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    q, k, v = (torch.randn(10, heads, 64, generator=generator).to(DEVICE) for heads in (4, 2, 2))
    for layer, spec in enumerate(SPECS):
        out = cache.attend(layer, q, k, v, step)
        for seq, rows in zip(batch.seq_ids, torch.arange(10).split(batch.query_lens)):
            keys, values = (torch.cat([cached[seq][i], new[rows]]) if seq in cached else new[rows]
                            for i, new in enumerate((k, v)))
            expected = reference.causal_attention(q[rows], keys, values, spec.scale, spec.window)
            torch.testing.assert_close(out[rows], expected, atol=1e-5, rtol=1e-5)


def test_rotating_on_the_way_in_is_rotating_before() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(10, heads, 64, generator=generator).to(DEVICE) for heads in (4, 2, 2))
    angles = torch.rand(10, 32, generator=generator).to(DEVICE)
    cos, sin = angles.cos(), angles.sin()
    results = []
    for rotating in (True, False):
        cache = new_cache()
        for seq, n in ((1, 9), (2, 4)):
            step = cache.begin(make_batch([(seq, [1] * n, 0)], DEVICE))
            cache.attend(0, *(torch.ones(n, heads, 64, device=DEVICE) for heads in (4, 2, 2)), step)
        step = cache.begin(mixed_batch())
        if rotating:
            results.append(cache.rotate_and_attend(0, q, k, v, cos, sin, step))
        else:
            results.append(cache.attend(0, apply_rope(q, cos, sin), apply_rope(k, cos, sin), v, step))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_what_the_kernels_do_not_take_is_refused() -> None:
    tables = BlockTables(BlockPool(4, 4))
    with pytest.raises(ValueError, match="k_dim is 48: expected one of"):
        TritonPagedKVCache([KVSpec(2, 48, 64, None, 0.1)], tables, torch.float32, DEVICE)
    with pytest.raises(ValueError, match="v_dim is 48: expected one of"):
        TritonPagedKVCache([KVSpec(2, 64, 48, None, 0.1)], tables, torch.float32, DEVICE)
    with pytest.raises(ValueError, match="k_dim is 48: expected one of"):
        build.paged_cache([KVSpec(2, 48, 64, None, 0.1)], 4, kv_dtype="int8", backend="triton", device=DEVICE)


def test_a_table_out_of_range_is_refused_before_anything_is_launched() -> None:
    cache = new_cache(blocks=6)
    cache.begin(make_batch([(0, [1] * 5, 0)], DEVICE))
    cache.tables.tables[0][0] = 6
    with pytest.raises(ValueError, match=r"block_tables\[0\] names block 6: expected 0 to 5"):
        cache.begin(make_batch([(0, [1], 5)], DEVICE))


def test_latents_whose_v_is_a_part_of_k_are_refused() -> None:
    with pytest.raises(ValueError, match="V is a part of K .absorbed MLA.: expected 'sdpa'"):
        build.paged_cache([KVSpec(1, 80, 64, None, 0.1, v_in_k=True)], 4, backend="triton", device=DEVICE)


def test_decode_steps_keep_to_the_window() -> None:
    """Steps of decode rows alone, long enough for a window of 3 to hide what is cached."""
    caches = [new_cache(), build.paged_cache(SPECS, 60, 4, backend="reference", device=DEVICE)]
    generator = torch.Generator().manual_seed(0)
    for length in range(8):
        steps = [cache.begin(make_batch([(0, [1], length), (1, [1], length)], DEVICE)) for cache in caches]
        for layer in range(len(SPECS)):
            q, k, v = (torch.randn(2, heads, 64, generator=generator).to(DEVICE) for heads in (4, 2, 2))
            torch.testing.assert_close(*(cache.attend(layer, q, k, v, step) for cache, step in zip(caches, steps)),
                                       atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("codec", ["int8", "fp8", "int4"])
def test_codes_are_attended_to_as_their_numbers(codec: str) -> None:
    """Prompts, then steps of decode rows (which the kernel reads as codes) and mixed ones, against the reference."""
    caches = [build.paged_cache(SPECS, 40, 4, codec, backend=name, device=DEVICE) for name in ("triton", "reference")]
    generator, lengths = torch.Generator().manual_seed(0), {0: 0, 1: 0}
    for added in ({0: 5, 1: 9}, {0: 1, 1: 1}, {0: 3, 1: 1}, {1: 1}):
        rows = [(seq, [1] * n, lengths[seq]) for seq, n in added.items()]
        steps = [cache.begin(make_batch(rows, DEVICE)) for cache in caches]
        for layer in range(len(SPECS)):
            tokens = sum(added.values())
            q, k, v = (torch.randn(tokens, heads, 64, generator=generator).to(DEVICE) for heads in (4, 2, 2))
            outs = [cache.attend(layer, q, k, v, step) for cache, step in zip(caches, steps)]
            torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)
        lengths = {seq: lengths[seq] + added.get(seq, 0) for seq in lengths}


def test_codes_are_not_decoded_where_the_kernel_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build.paged_cache(SPECS, 8, 4, "fp8", backend="triton", device=DEVICE)
    monkeypatch.setattr(cache, "_read", lambda *args: pytest.fail("the codes were gathered and decoded"))
    step = cache.begin(make_batch([(0, [1], 0), (1, [1], 0)], DEVICE))
    assert cache.attend(0, *(torch.ones(2, heads, 64, device=DEVICE) for heads in (4, 2, 2)), step).shape == (2, 4, 64)
