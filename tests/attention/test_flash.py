"""Tiles and the online softmax against the reference; the merge law; bytes and memory as they grow with the length."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minillm.attention import flash, reference
from minillm.measure.memory import peak_bytes


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def qkv(queries: int, keys: int, heads: int = 4, kv_heads: int = 2, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return (random(queries, heads, 8, seed=seed), random(keys, kv_heads, 8, seed=seed + 1),
            random(keys, kv_heads, 6, seed=seed + 2))


def close(got: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def exact(q, k, v, scale, visible) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and lse in one softmax; rows that see nothing: 0 and -inf."""
    scores = torch.einsum("qhd,khd->qhk", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1)) * scale
    scores = scores.masked_fill(~visible[:, None], -math.inf)  # [S_q, H, S_k]
    weights = scores.softmax(-1).masked_fill(~visible[:, None], 0)
    return (torch.einsum("qhk,khd->qhd", weights, v.repeat_interleave(q.shape[1] // v.shape[1], 1)),
            scores.logsumexp(-1))


lengths = st.tuples(st.integers(1, 20), st.integers(0, 20)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
heads = st.sampled_from([(4, 4), (6, 2), (5, 1)])
blocks = st.integers(1, 9)


@given(lengths, heads, blocks, blocks, st.sampled_from([None, 1, 3, 8, 64]), st.integers(0, 2**16))
def test_tiled_attention_is_the_reference_at_any_tile_size(lens, counts, block_q, block_k, window, seed) -> None:
    q, k, v = qkv(*lens, *counts, seed=seed)
    out, lse = flash.tiled_attention(q, k, v, 0.3, block_q, block_k, window=window)
    close(out, reference.causal_attention(q, k, v, 0.3, window))
    close(lse, exact(q, k, v, 0.3, reference.causal_mask(*lens, window, "cpu"))[1])


@given(st.integers(1, 20), st.integers(0, 20), blocks, blocks, st.integers(0, 2**16))
def test_without_a_mask_every_key_counts_and_without_keys_nothing_does(queries, keys, block_q, block_k, seed) -> None:
    q, k, v = qkv(queries, keys, seed=seed)
    out, lse = flash.tiled_attention(q, k, v, 0.3, block_q, block_k, causal=False)
    expected, expected_lse = exact(q, k, v, 0.3, torch.ones(queries, keys, dtype=torch.bool))
    close(out, expected)
    close(lse, expected_lse)


@given(st.integers(2, 20), st.integers(0, 12), blocks, blocks, st.sampled_from([None, 2]))
def test_rows_that_see_no_key_are_0_and_not_the_mean_of_v(queries, keys, block_q, block_k, window) -> None:
    """More queries than keys: the first stand before the text. Masked by a large finite number they give mean(V)."""
    keys = min(keys, queries - 1)
    q, k, v = qkv(queries, keys)
    out, lse = flash.tiled_attention(q, k, v, 0.3, block_q, block_k, window=window)
    blind = queries - keys
    assert not out[:blind].any() and (lse[:blind] == -math.inf).all()
    if keys:
        close(out[blind:], reference.causal_attention(q[blind:], k, v, 0.3, window))


@given(lengths, blocks, blocks, st.sampled_from([None, 1, 3]), st.data())
def test_a_hidden_key_changes_nothing_wherever_tiles_end(lens, block_q, block_k, window, data) -> None:
    """Bit for bit: neither a later key nor one behind the window leaks in over the edge of a tile."""
    q, k, v = qkv(*lens)
    before, _ = flash.tiled_attention(q, k, v, 0.3, block_q, block_k, window=window)
    key = data.draw(st.integers(0, lens[1] - 1))
    k[key], v[key] = k[key] + 50, v[key] - 1e6
    after, _ = flash.tiled_attention(q, k, v, 0.3, block_q, block_k, window=window)
    sees = reference.causal_mask(*lens, window, "cpu")[:, key]
    assert torch.equal(after[~sees], before[~sees])
    assert (after[sees] != before[sees]).flatten(1).any(dim=1).all()


@given(lengths, blocks, blocks, st.sampled_from([None, 1, 3, 8]))
def test_exactly_the_tiles_without_a_visible_key_are_skipped(lens, block_q, block_k, window) -> None:
    q, k, v = qkv(*lens)
    traffic = flash.Traffic()
    flash.tiled_attention(q, k, v, 0.3, block_q, block_k, window=window, traffic=traffic)
    mask = reference.causal_mask(*lens, window, "cpu")
    tiles = [part for rows in mask.split(block_q) for part in rows.split(block_k, dim=1)]
    assert traffic.tiles == sum(bool(tile.any()) for tile in tiles)
    assert traffic.tiles + traffic.skipped == len(tiles)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 30), st.sampled_from([None, 1, 5]), st.data())
def test_a_tiles_mask_is_its_part_of_the_whole_mask(queries, keys, more, window, data) -> None:
    sight = flash.Sight(keys - queries, True, window)
    whole = reference.causal_mask(queries, keys, window, "cpu")
    rows = data.draw(st.sampled_from(flash.tiles(range(queries), 7)))
    columns = data.draw(st.sampled_from(flash.tiles(range(keys), 1 + more)))
    part = whole[rows.start : rows.stop, columns.start : columns.stop]
    assert torch.equal(sight.mask(rows, columns, "cpu"), part)
    assert sight.hides_all(rows, columns) == (not part.any())
    assert sight.shows_all(rows, columns) == bool(part.all())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.floats(-500, 500), st.integers(0, 2**16))
def test_the_online_softmax_is_the_softmax_however_it_is_cut_and_shifted(widths, shift, seed) -> None:
    """Scores of ±500 overflow without the running maximum; a shift of them all changes nothing but m."""
    scores, v = random(2, 3, sum(widths), seed=seed) * 9, random(2, sum(widths), 5, seed=seed + 1)

    def online(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.full((2, 3), -math.inf).double(), torch.zeros(2, 3).double(), torch.zeros(2, 3, 5).double()
        for part, part_v in zip(scores.split(widths, -1), v.split(widths, 1)):
            state = flash.online_softmax_update(part, part_v, *state)
        return flash.finish(*state)

    out, lse = online(scores + shift)
    close(out.transpose(0, 1), scores.softmax(-1) @ v, 1e-10)
    close(lse.transpose(0, 1), scores.logsumexp(-1) + shift, 1e-10)


def test_a_step_of_the_online_softmax_by_hand() -> None:
    """Scores log 1, log 3, then log 4: the sum is 4 parts, then 8; the values 8 and 0, then 4."""
    state = flash.online_softmax_update(
        torch.tensor([[[1.0, 3.0]]]).log(), torch.tensor([[[8.0], [0.0]]]), torch.tensor([[-math.inf]]),
        torch.zeros(1, 1), torch.zeros(1, 1, 1))
    assert [part.item() for part in state] == pytest.approx([math.log(3), 4 / 3, 8 / 3])
    state = flash.online_softmax_update(torch.tensor([[[4.0]]]).log(), torch.tensor([[[4.0]]]), *state)
    assert [part.item() for part in state] == pytest.approx([math.log(4), 8 / 4, 6])
    assert flash.finish(*state)[0].item() == pytest.approx(3)  # (1*8 + 3*0 + 4*4) / 8


def partial(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of 3 queries over `size` keys that nobody else has."""
    q = random(3, 4, 8, seed=99)
    return flash.tiled_attention(q, random(size, 2, 8, seed=seed), random(size, 2, 6, seed=seed + 1), 0.3, causal=False)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**16))
def test_merging_is_attention_over_both_in_any_order(a, b, c, seed) -> None:
    parts = [partial(size, seed + 10 * i) for i, size in enumerate((a, b, c))]
    left = flash.merge(*flash.merge(*parts[0], *parts[1]), *parts[2])
    right = flash.merge(*parts[0], *flash.merge(*parts[1], *parts[2]))
    k, v = (torch.cat([random(size, 2, width, seed=seed + 10 * i + add) for i, size in enumerate((a, b, c))])
            for width, add in ((8, 0), (6, 1)))
    whole = flash.tiled_attention(random(3, 4, 8, seed=99), k, v, 0.3, causal=False)
    swapped = flash.merge(*flash.merge(*parts[2], *parts[1]), *parts[0])
    for merged in (left, right, swapped):
        for got, expected in zip(merged, whole):
            close(got, expected)


def test_a_part_without_keys_is_the_identity_and_two_are_no_nan() -> None:
    some, none = partial(5, seed=1), partial(0, seed=2)
    for merged in (flash.merge(*some, *none), flash.merge(*none, *some)):
        assert torch.equal(merged[0], some[0]) and torch.equal(merged[1], some[1])
    out, lse = flash.merge(*none, *none)
    assert not out.any() and (lse == -math.inf).all()


def test_adding_the_weights_of_parts_without_their_sums_is_wrong() -> None:
    """The mean of two partial results is the merged one only when both have the same log-sum-exp."""
    (out_a, lse_a), (out_b, lse_b) = partial(5, seed=1), partial(2, seed=5)
    merged, lse = flash.merge(out_a, lse_a, out_b, lse_b)
    assert not torch.allclose(merged, (out_a + out_b) / 2, atol=1e-2)
    equal, _ = flash.merge(out_a, lse_a, out_b, lse_a)
    close(equal, (out_a + out_b) / 2)
    assert (lse > torch.maximum(lse_a, lse_b)).all()


@given(lengths, st.integers(1, 9), st.sampled_from([None, 1, 5]), st.integers(0, 2**16))
def test_split_keys_merge_to_the_whole(lens, splits, window, seed) -> None:
    q, k, v = qkv(*lens, seed=seed)
    out, lse = flash.split_attention(q, k, v, 0.3, splits, block_k=4, window=window)
    close(out, reference.causal_attention(q, k, v, 0.3, window))
    close(lse, flash.tiled_attention(q, k, v, 0.3, window=window)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_returns_the_dtype_it_was_given_and_sums_halves_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in qkv(33, 70))
    out, lse = flash.tiled_attention(q, k, v, 0.3, 16, 16)
    expected = reference.causal_attention(q.double(), k.double(), v.double(), 0.3)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close(out.double(), expected, max(1e-5, torch.finfo(dtype).eps))


def test_constant_values_come_back_whatever_the_scores() -> None:
    q, k, v = random(7, 4, 8, seed=0) * 30, random(12, 2, 8, seed=1) * 30, torch.full((12, 2, 8), 2.5).double()
    close(flash.tiled_attention(q, k, v, 1.0, 2, 5)[0], torch.full((7, 4, 8), 2.5).double())


def counted(n: int, d: int, fast_bytes: int) -> tuple[int, int]:
    """Bytes read and written without a mask: standard, and tiled with blocks that fill fast memory. No number is
    computed: tensors on `meta` have sizes only."""
    q, k, v = (torch.empty(n, 1, d, dtype=torch.bfloat16, device="meta") for _ in range(3))
    standard, tiled = flash.Traffic(), flash.Traffic()
    flash.standard_attention(q, k, v, 1.0, standard)
    block = flash.block_that_fits(fast_bytes, d)
    flash.tiled_attention(q, k, v, 1.0, block, block, causal=False, traffic=tiled)
    return standard.bytes, tiled.bytes


def test_standard_attention_moves_n_squared_and_tiled_n_squared_d_squared_over_m() -> None:
    """To the byte: each of N/B tiles of queries reads K and V, 2·N·d values, with B = M/4d."""
    for n, d, fast in ((1024, 64, 2**16), (2048, 64, 2**16), (1024, 128, 2**16), (1024, 64, 2**17)):
        standard, tiled = counted(n, d, fast)
        assert standard == 2 * (4 * n * n + 4 * n * d)  # scores and weights, written and read; q, k, v, out
        passes = n // (fast // 2 // (4 * d))
        once = 2 * 2 * n * d + 4 * n  # q, out, and a float32 lse
        assert tiled == passes * 2 * n * d * 2 + once
        assert tiled - once == 8 * n**2 * (2 * d) ** 2 // fast  # M in bytes, 2 a value
    standard, tiled = counted(4096, 64, 100 * 1024)  # 4·N² values against 8·N²·d²/M = 0.64·N², M being 51,200
    assert 5.5 < standard / tiled < 4 / 0.64


def test_k_and_v_count_once_for_the_heads_that_share_them_and_skipped_tiles_not_at_all() -> None:
    q, k, v = (x.float() for x in qkv(8, 8))
    traffic = flash.Traffic()
    flash.tiled_attention(q, k, v, 0.3, 4, 4, traffic=traffic)
    tile = 4 * 4 * 2 * (8 + 6)  # bytes, keys, K/V heads, values of K and V
    assert traffic == flash.Traffic(bytes_read=3 * tile + 8 * 4 * 8 * 4, bytes_written=8 * 4 * (6 + 1) * 4, tiles=3,
                                    skipped=1)


def test_peak_memory_of_tiles_grows_with_the_length_and_of_scores_with_its_square() -> None:
    """1k to 8k, one head of 64, float32, tiles of 256: doubling the length doubles what tiles hold at most."""
    tiled, standard = [], []
    for n in (1024, 2048, 4096, 8192):
        q, k, v = (random(n, 1, 64, seed=i).float() for i in range(3))
        tiled.append(peak_bytes(lambda: flash.tiled_attention(q, k, v, 0.125, 256, 256)))  # noqa: B023
        if n <= 4096:  # 8k would hold 0.9 GB
            standard.append(peak_bytes(lambda: flash.standard_attention(q, k, v, 0.125)))  # noqa: B023
    assert all(later < 2.05 * earlier for earlier, later in zip(tiled, tiled[1:]))
    assert all(later > 3.8 * earlier for earlier, later in zip(standard, standard[1:]))
    assert tiled[-1] < 5e6 and standard[-1] > 2e8


@pytest.mark.parametrize("arguments, words", [
    ({"block_q": 0}, "block_q is 0: expected at least 1"), ({"block_k": -1}, "block_k is -1: expected at least 1"),
    ({"causal": False, "window": 3}, "window is 3 without causal: expected None")])
def test_tiles_that_make_no_sense_are_refused(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        flash.tiled_attention(*qkv(3, 3), 0.3, **arguments)
    with pytest.raises(ValueError, match="splits is 0: expected at least 1"):
        flash.split_attention(*qkv(3, 3), 0.3, 0)
    with pytest.raises(ValueError, match="block_k is -1: expected at least 1"):
        flash.split_attention(*qkv(3, 3), 0.3, 2, block_k=-1)
