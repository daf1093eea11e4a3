"""The reference against sums written out by hand; every backend against the reference in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm import measure
from minillm.attention import backends, reference, triton_backend

EXACT = ("reference", "sdpa", "tiled")  # triton takes no float64: its kernels have tests of their own


def by_hand(q, k, v, scale, window=None):
    """Attention with explicit loops over heads, queries and keys: nothing to get wrong but the definition."""
    queries, heads, _ = q.shape
    keys, kv_heads, width = v.shape
    out = torch.zeros(queries, heads, width, dtype=torch.float64)
    for h in range(heads):
        g = h // (heads // kv_heads)
        for i in range(queries):
            at = i + keys - queries
            first = 0 if window is None else max(0, at - window + 1)
            scores = [float(q[i, h] @ k[j, g]) * scale for j in range(first, at + 1)]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            for w, j in zip(weights, range(first, at + 1)):
                out[i, h] += w / sum(weights) * v[j, g]
    return out


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@st.composite
def rows(draw):
    """(query_len, key_len) of each row: keys at least as many as queries."""
    lens = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4))
    return [(new, new + before) for new, before in lens]


@settings(max_examples=40, deadline=None)
@given(rows(), st.sampled_from([(1, 1), (4, 4), (6, 2), (5, 1)]), st.sampled_from([None, 1, 3, 64]),
       st.integers(0, 2**16))
def test_every_backend_is_attention_by_its_definition(lens, heads, window, seed) -> None:
    h, h_kv = heads
    q = random(sum(new for new, _ in lens), h, 8, seed=seed)
    keys = [random(total, h_kv, 8, seed=seed + i + 1) for i, (_, total) in enumerate(lens)]
    values = [random(total, h_kv, 6, seed=seed + i + 50) for i, (_, total) in enumerate(lens)]
    expected, start = [], 0
    for (new, _), k, v in zip(lens, keys, values):
        expected.append(by_hand(q[start : start + new], k, v, 0.3, window))
        start += new
    expected = torch.cat(expected)
    for backend in EXACT:
        got = backends.attend(backend, q, keys, values, [new for new, _ in lens], 0.3, window)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("elements", [0, 200, 2**24])
def test_layers_may_share_a_steps_masks_and_large_ones_are_not_laid_out(
        elements: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers, rows of one token and of several, two of them alike; 0 elements: every row goes head by head."""
    monkeypatch.setattr(backends, "MASK_ELEMENTS", elements)
    lens = [(1, 9), (4, 12), (4, 12), (5, 5), (5, 30)]
    shared: backends.Masks = {}
    for layer in range(2):
        q = random(sum(new for new, _ in lens), 6, 8, seed=layer)
        keys = [random(total, 2, 8, seed=10 * layer + i) for i, (_, total) in enumerate(lens)]
        values = [random(total, 2, 6, seed=10 * layer + i + 5) for i, (_, total) in enumerate(lens)]
        given = q, keys, values, [new for new, _ in lens], 0.3, window
        torch.testing.assert_close(backends.attend("sdpa", *given, shared), backends.attend("reference", *given),
                                   atol=1e-12, rtol=1e-12)
    chunks = {0: 0, 200: 1, 2**24: 2}[elements]  # (4, 12) takes 144 elements, (5, 30) takes 450
    single = window is not None and elements > 0  # a lone query is masked only where a window hides early keys
    assert len(shared) == chunks + single


def test_constant_values_come_back_whatever_the_scores() -> None:
    """Softmax rows sum to 1, so attention over a constant V returns it."""
    q, k, v = random(7, 4, 8, seed=0) * 30, random(12, 2, 8, seed=1) * 30, torch.full((12, 2, 8), 2.5)
    out = reference.causal_attention(q, k, v.double(), 1.0)
    torch.testing.assert_close(out, torch.full_like(out, 2.5))


def test_a_window_as_long_as_the_text_is_no_window() -> None:
    q, k, v = random(9, 4, 8, seed=0), random(9, 2, 8, seed=1), random(9, 2, 8, seed=2)
    assert torch.equal(reference.causal_attention(q, k, v, 0.3, window=9), reference.causal_attention(q, k, v, 0.3))
    seen = reference.causal_mask(9, 9, 4, "cpu").sum(dim=1)
    assert seen.tolist() == [min(i + 1, 4) for i in range(9)]


def test_query_heads_of_a_group_are_neighbours() -> None:
    """GQA repeats each K/V head in place (a a b b), it does not tile them (a b a b)."""
    q, k, v = random(5, 4, 8, seed=0), random(5, 2, 8, seed=1), random(5, 2, 8, seed=2)
    grouped = reference.causal_attention(q, k, v, 0.3)
    full = reference.causal_attention(q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], 0.3)
    tiled = reference.causal_attention(q, k[:, [0, 1, 0, 1]], v[:, [0, 1, 0, 1]], 0.3)
    torch.testing.assert_close(grouped, full)
    assert not torch.allclose(grouped, tiled)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'flashy': expected one of reference, sdpa"):
        backends.check_backend("flashy")


@pytest.mark.parametrize("window", [None, 5])
def test_the_triton_backend_is_the_reference_for_a_whole_ragged_batch(window) -> None:
    lens = [(3, 3), (1, 20), (7, 12)]
    device = measure.best_device()
    q = random(sum(new for new, _ in lens), 4, 64, seed=0).float().to(device)
    keys, values = ([random(total, 2, 64, seed=seed + i).float().to(device) for i, (_, total) in enumerate(lens)]
                    for seed in (1, 9))
    given = q, keys, values, [new for new, _ in lens], 0.125, window
    shared: backends.Masks = {}
    for _ in range(2):  # two layers of one step
        torch.testing.assert_close(backends.attend("triton", *given, shared), backends.attend("reference", *given),
                                   atol=1e-5, rtol=1e-5)


def test_the_triton_backend_is_refused_where_no_kernel_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="attention backend is 'triton' on cpu: expected a GPU"):
        triton_backend.check("cpu")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ValueError, match="attention backend is 'triton' on cuda:1: expected cuda:0, where Triton"):
        triton_backend.check("cuda:1")
    triton_backend.check("cuda:0")
    monkeypatch.setattr(triton_backend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="'triton', which is not installed: expected it, or 'sdpa'"):
        triton_backend.check("cuda")
