"""The merge of partial attention results: against float64, and the law that order and grouping do not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minillm.kernels.merge import MAX_SPLITS, merge_reference, merge_splits, tile_columns

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NOTHING = float("-inf")


def shares(rows: int, splits: int, dim: int, seed: int, empty: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Parts [N, S, D] and lse [N, S], float32; a share is empty with that probability, and its values then NaN."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(rows, splits, dim, generator=generator)
    lse = torch.randn(rows, splits, generator=generator) * 10
    lse[torch.rand(rows, splits, generator=generator) < empty] = NOTHING
    parts[lse == NOTHING] = float("nan")
    return parts.to(DEVICE), lse.to(DEVICE)


def close(got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.testing.assert_close(got[0].double(), expected[0].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1].double(), expected[1].double(), rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(rows=st.integers(0, 4), splits=st.integers(1, 20), dim=st.sampled_from([1, 7, 64, 80, 128, 256]),
       seed=st.integers(0, 1000))
def test_it_agrees_with_float64(rows: int, splits: int, dim: int, seed: int) -> None:
    parts, lse = shares(rows, splits, dim, seed)
    close(merge_splits(parts, lse), merge_reference(parts.double(), lse.double()))


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), empty=st.sampled_from([0.0, 0.3, 0.9]),
       seed=st.integers(0, 1000))
def test_order_and_grouping_do_not_matter(sizes: list[int], empty: float, seed: int) -> None:
    """Groups of shares merged, then their results merged, in any order, are all shares merged."""
    parts, lse = shares(2, sum(sizes), 64, seed, empty)
    for merge in (merge_splits, merge_reference):
        at_once = merge(parts, lse)
        groups = [merge(p.contiguous(), w.contiguous()) for p, w in zip(parts.split(sizes, 1), lse.split(sizes, 1))]
        outs, totals = zip(*reversed(groups))
        close(merge(torch.stack(outs, 1), torch.stack(totals, 1)), at_once)


def test_an_empty_share_changes_nothing() -> None:
    parts, lse = shares(3, 4, 80, 0, empty=0)
    more = (torch.cat([parts, torch.full_like(parts, float("nan"))], 1),
            torch.cat([lse, torch.full_like(lse, NOTHING)], 1))
    for merge in (merge_splits, merge_reference):
        close(merge(*more), merge(parts, lse))


@pytest.mark.parametrize("splits", [1, 3])
def test_only_empty_shares_give_zero_and_nothing(splits: int) -> None:
    parts, lse = shares(2, splits, 64, 0, empty=1.1)
    for out, total in (merge_splits(parts, lse), merge_reference(parts, lse)):
        assert torch.equal(out, torch.zeros(2, 64, device=DEVICE))
        assert torch.equal(total, torch.full((2,), NOTHING, device=DEVICE))


def test_the_shares_of_one_softmax_make_the_whole() -> None:
    """The law itself, on scores: attention over 12 keys is that over 5 and over 7, merged."""
    generator = torch.Generator().manual_seed(0)
    scores, v = torch.randn(12, generator=generator) * 5, torch.randn(12, 64, generator=generator)
    halves = [(torch.softmax(s, 0) @ x, torch.logsumexp(s, 0)) for s, x in zip(scores.split([5, 7]), v.split([5, 7]))]
    parts = torch.stack([out for out, _ in halves])[None].to(DEVICE)
    lse = torch.stack([total for _, total in halves])[None].to(DEVICE)
    whole = torch.softmax(scores, 0) @ v, torch.logsumexp(scores, 0)
    close(merge_splits(parts, lse), (whole[0][None].to(DEVICE), whole[1][None].to(DEVICE)))


def test_scores_too_large_for_exp_are_merged() -> None:
    parts, _ = shares(1, 2, 64, 0, empty=0)
    out, total = merge_splits(parts, torch.tensor([[1000.0, -1000.0]], device=DEVICE))
    assert torch.equal(out, parts[:, 0])
    assert total.item() == 1000.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype: torch.dtype) -> None:
    parts, lse = shares(2, 5, 96, 0)
    out, total = merge_splits(parts, lse, dtype)
    exact, _ = merge_reference(parts.double(), lse.double())
    assert out.dtype == dtype
    assert total.dtype == torch.float32
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_the_most_splits_of_the_widest_head() -> None:
    parts, lse = shares(1, MAX_SPLITS, 256, 0)
    close(merge_splits(parts, lse), merge_reference(parts.double(), lse.double()))
    assert tile_columns(MAX_SPLITS, 256) == 32


@pytest.mark.parametrize(("change", "words"), [
    (lambda p, w: (p[0], w), r"parts is \[3, 8\]: expected \[N, S, D\], S from 1 to 256"),
    (lambda p, w: (p[:, :0], w[:, :0]), r"parts is \[2, 0, 8\]"),
    (lambda p, w: (p.repeat(1, 90, 1), w.repeat(1, 90)), r"parts is \[2, 270, 8\]"),
    (lambda p, w: (p, w[:, :2]), r"lse is \[2, 2\]: expected \[2, 3\]"),
    (lambda p, w: (p.half(), w), r"parts is torch.float16 .* expected float32"),
    (lambda p, w: (p, w.double()), r"lse is torch.float64"),
    (lambda p, w: (p, w.to("meta")), r"lse is torch.float32 on meta"),
    (lambda p, w: (p.transpose(0, 1).contiguous().transpose(0, 1), w), r"parts is .*strides \[8, 16, 1\]"),
    (lambda p, w: (p, w, torch.int8), r"dtype is torch.int8"),
])
def test_what_it_cannot_do_is_refused(change, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge_splits(*change(*shares(2, 3, 8, 0)))
