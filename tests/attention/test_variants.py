"""The variants against the reference, against each other, and against the mistakes that are made with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minillm.attention import reference, variants
from minillm.measure import cost
from minillm.measure.shape import KNOWN_SHAPES


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def qkv(queries: int, keys: int, heads: int, kv_heads: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return (random(queries, heads, 8, seed=seed), random(keys, kv_heads, 8, seed=seed + 1),
            random(keys, kv_heads, 6, seed=seed + 2))


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


lengths = st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))


@given(lengths, st.sampled_from([(4, 4), (6, 2), (5, 1)]), st.integers(0, 2**16))
def test_grouped_query_attention_is_the_reference(lens, heads, seed) -> None:
    q, k, v = qkv(*lens, *heads, seed=seed)
    visible = reference.causal_mask(*lens, None, "cpu")
    close(variants.grouped_query(q, k, v, 0.3, visible), reference.causal_attention(q, k, v, 0.3))


@given(lengths, st.integers(0, 2**16))
def test_its_two_ends_are_mha_and_mqa(lens, seed) -> None:
    visible = reference.causal_mask(*lens, None, "cpu")
    q, k, v = qkv(*lens, 4, 4, seed=seed)
    close(variants.grouped_query(q, k, v, 0.3, visible), variants.multi_head(q, k, v, 0.3, visible))
    q, k, v = qkv(*lens, 4, 1, seed=seed)
    close(variants.grouped_query(q, k, v, 0.3, visible), variants.multi_query(q, k[:, 0], v[:, 0], 0.3, visible))


def test_kv_heads_are_repeated_in_place_not_tiled() -> None:
    kv = torch.tensor([[[1.0], [2.0]]])  # [1, 2, 1]
    assert variants.expand_kv_heads(kv, 6).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    assert variants.expand_kv_heads(kv, 2).flatten().tolist() == [1, 2]


@given(lengths, st.integers(1, 12))
def test_a_window_row_sees_itself_and_window_minus_one_before_it(lens, window) -> None:
    """Not W + 1 and not 2W + 1 keys. Row i of a whole text sees min(i + 1, W)."""
    q, k, v = qkv(*lens, 2, 1)
    close(variants.sliding_window(q, k, v, 0.3, window), reference.causal_attention(q, k, v, 0.3, window))
    last_key_only = torch.zeros_like(v)
    for offset in range(keys := len(k)):  # which keys reach the last query: a value of 1 at one key shows its weight
        last_key_only.zero_()[keys - 1 - offset] = 1
        reached = variants.sliding_window(q, k, last_key_only, 0.3, window)[-1].abs().sum() > 0
        assert reached == (offset < window)


@given(lengths, st.integers(1, 12), st.integers(0, 5))
def test_each_row_sees_its_window_and_the_sinks_once(lens, window, sinks) -> None:
    queries, keys = lens
    positions = torch.arange(keys)
    seen = variants.sink_mask(positions[keys - queries :], positions, window, sinks)
    for row, position in zip(seen, range(keys - queries, keys)):
        expected = {*range(max(0, position - window + 1), position + 1), *range(min(sinks, position + 1))}
        assert set(row.nonzero().flatten().tolist()) == expected
    q, k, v = qkv(*lens, 4, 2)
    got = variants.with_sinks(q, k, v, 0.3, window, sinks)
    close(got, variants.grouped_query(q, k, v, 0.3, seen))
    if sinks == 0:
        close(got, variants.sliding_window(q, k, v, 0.3, window))
    if window + sinks >= keys:
        close(got, reference.causal_attention(q, k, v, 0.3))


def mla(queries: int, keys: int, heads: int, nope: int, rope: int, rank: int, v_dim: int,
        seed: int) -> tuple[torch.Tensor, ...]:
    sizes = [(queries, heads, nope), (queries, heads, rope), (keys, rank), (keys, rope), (heads, nope, rank),
             (heads, v_dim, rank)]
    return tuple(random(*size, seed=seed + i) for i, size in enumerate(sizes))


@given(lengths, st.integers(1, 5), st.sampled_from([(8, 4, 16, 6), (2, 2, 3, 9), (16, 8, 4, 4)]), st.integers(0, 2**16))
def test_absorbed_mla_is_expanded_mla(lens, heads, dims, seed) -> None:
    given_ = mla(*lens, heads, *dims, seed=seed)
    close(variants.mla_absorbed(*given_), variants.mla_expanded(*given_))


def test_the_scale_of_mla_is_that_of_the_expanded_key() -> None:
    """DeepSeek-V2: 1/√192. Taken from the absorbed key, 576 values, the softmax is flatter, and the answer wrong."""
    assert variants.mla_scale(128, 64) == 192**-0.5
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = mla(5, 9, 3, 8, 4, 16, 6, seed=0)
    q, k = variants.absorb(q_nope, q_rope, w_uk), torch.cat([latent, k_rope], -1)[:, None]
    for dim, right in ((8 + 4, True), (16 + 4, False)):
        out = reference.causal_attention(q, k, latent[:, None], dim**-0.5)
        expected = variants.mla_expanded(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
        assert torch.allclose(variants.values_from_latent(out, w_uv), expected, atol=1e-12) == right


def test_a_norm_between_the_up_projection_and_the_product_cannot_be_absorbed() -> None:
    """QK-norm divides each head's expanded key by its own length: no fixed matrix on the query's side does that."""
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = mla(5, 9, 3, 8, 4, 16, 6, seed=0)
    k, v = variants.expand_latent(latent, k_rope, w_uk, w_uv)
    q, scale = torch.cat([q_nope, q_rope], -1), variants.mla_scale(8, 4)
    normed = torch.cat([k[..., :8] / k[..., :8].norm(dim=-1, keepdim=True), k[..., 8:]], -1)
    out = reference.causal_attention(q, normed, v, scale)
    assert not torch.allclose(out, variants.mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv), atol=1e-2)


@pytest.mark.parametrize("kv_heads, kib, intensity", [(32, 16, 1), (8, 4, 4), (1, 0.5, 32)])
def test_what_mha_gqa_and_mqa_store_and_move(kv_heads: int, kib: float, intensity: int) -> None:
    """Llama-3-8B with 32, 8 and 1 K/V heads: KiB a token in a layer, and FLOP a byte of K and V when decoding."""
    shape = replace(KNOWN_SHAPES["llama-3-8b"], kv_heads=kv_heads)
    assert shape.kv_bytes_per_token() / shape.layers == kib * 1024
    step = cost.attention_cost(shape, [1], [8192])
    assert step.kv_bytes == kib * 1024 * 8193
    assert step.flops / step.kv_bytes == pytest.approx(intensity, rel=1e-3)


def test_a_window_bounds_what_a_decoded_token_moves() -> None:
    whole = KNOWN_SHAPES["llama-3-8b"]
    window = replace(whole, window=1024 + 4)  # 1024 recent keys and 4 sinks move what a window of 1028 does
    assert cost.attention_cost(window, [1], [8192]).kv_bytes == 4096 * 1029
    assert cost.attention_cost(window, [1], [512]) == cost.attention_cost(whole, [1], [512])
