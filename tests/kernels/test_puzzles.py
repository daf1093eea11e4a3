"""The puzzles' kernels: against their specification in float64, over odd shapes; refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minillm.kernels import puzzles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TILE = 16 if DEVICE == "cuda" else 4  # what tl.dot takes at least, on a GPU
SIZES = st.integers(1, 40)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(place * size for place, size in enumerate(shape, 1)))
    return (torch.randn(*shape, generator=generator) * 3).to(DEVICE, dtype)


def apart(x: torch.Tensor, gap: int) -> torch.Tensor:
    """The same rows with `gap` NaN between them, which nobody may read."""
    wide = torch.full((x.shape[0], x.shape[1] + gap), float("nan"), dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def close(came: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """float32 within 1e-5, float16 within one rounding step."""
    tolerance = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(came.double(), exact.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("programs", "block"), [(0, 4), (1, 1), (1, 8), (5, 4), (2, 1024)])
def test_add(programs: int, block: int, dtype: torch.dtype) -> None:
    x, y = draw(programs * block, dtype=dtype), draw(programs * block, dtype=dtype) + 1
    out = puzzles.add(x, y, block)
    assert out.dtype == dtype
    close(out, puzzles.add_reference(x.double(), y.double()), dtype)


@settings(max_examples=30)
@given(count=st.integers(0, 70), block=st.sampled_from([1, 2, 8, 64]))
def test_gaps(count: int, block: int) -> None:
    times = draw(count)
    close(puzzles.gaps(times, block), puzzles.gaps_reference(times.double()), torch.float32)


@settings(max_examples=30)
@given(rows=st.integers(0, 6), width=SIZES, gap=st.integers(0, 5))
def test_rows(rows: int, width: int, gap: int) -> None:
    x = apart(draw(rows, width), gap)
    close(puzzles.row_sum(x), x.double().sum(1), torch.float32)
    close(puzzles.softmax(x), torch.softmax(x.double(), 1), torch.float32)
    torch.testing.assert_close(puzzles.softmax_reference(x.double()), torch.softmax(x.double(), 1))


def test_a_row_sum_of_halves_is_float32() -> None:
    """3 times 60,000 does not fit into float16, whose largest number is 65,504."""
    x = torch.full((2, 3), 60_000.0, dtype=torch.float16, device=DEVICE)
    for call in (puzzles.row_sum, puzzles.row_sum_reference):
        assert call(x).tolist() == [180_000.0, 180_000.0]


def test_softmax_of_large_and_of_masked_values() -> None:
    x = torch.tensor([[1000.0, 1001.0, -1000.0], [5.0, float("-inf"), 5.0]], device=DEVICE)
    close(puzzles.softmax(x), torch.softmax(x.double(), 1), torch.float32)
    assert puzzles.softmax(x)[1].tolist() == [0.5, 0.0, 0.5]


@settings(max_examples=30)
@given(m=st.integers(0, 20), n=st.integers(0, 20), k=st.integers(0, 20))
def test_matmul(m: int, n: int, k: int) -> None:
    a, b = draw(m, k), draw(k, n)
    close(puzzles.matmul(a, b, TILE), a.double() @ b.double(), torch.float32)


def test_matmul_of_halves_is_summed_wide() -> None:
    """Each tile's part is beyond float16's 65,504, with one sign and then the other: only their sum fits."""
    a = torch.full((1, 2 * TILE), 300.0, dtype=torch.float16, device=DEVICE)
    b = torch.full((2 * TILE, 1), 300.0, dtype=torch.float16, device=DEVICE)
    b[TILE:] = -299
    out = puzzles.matmul(a, b, TILE)
    assert out.dtype == torch.float16
    assert out.item() == puzzles.matmul_reference(a, b).item() == 300.0 * TILE


@settings(max_examples=30)
@given(size=st.integers(1, 5), width=st.integers(1, 9), pages=st.integers(1, 6), data=st.data())
def test_gather(size: int, width: int, pages: int, data: st.DataObject) -> None:
    """Blocks in any order, one of them perhaps twice; slots behind the end hold NaN."""
    length = data.draw(st.integers(0, pages * size))
    table = torch.tensor(data.draw(st.lists(st.integers(0, 7), min_size=pages, max_size=pages)), dtype=torch.int32)
    blocks = torch.full((8, size, width), float("nan"), device=DEVICE)
    for token in range(length):
        blocks[table[token // size], token % size] = draw(width) + token
    out = puzzles.gather(blocks, table.to(DEVICE), length)
    assert torch.equal(out, puzzles.gather_reference(blocks, table.to(DEVICE), length))
    assert not out.isnan().any()


def test_inputs_are_left_alone() -> None:
    x, y = draw(2, 8), draw(8, 8)
    before = x.clone(), y.clone()
    puzzles.add(x[0], y[0], 8), puzzles.gaps(x[0]), puzzles.row_sum(x), puzzles.softmax(x), puzzles.matmul(x, y, TILE)
    puzzles.gather(x[None], torch.zeros(1, dtype=torch.int32, device=DEVICE), 2)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


X, WIDE = torch.zeros(8), torch.zeros(3, 5)
TABLE, BLOCKS = torch.tensor([0, 2], dtype=torch.int32), torch.zeros(3, 2, 4)
HUGE = torch.empty(2**16 + 1, 2**15, device="meta")


@pytest.mark.parametrize(("call", "words"), [
    (lambda: puzzles.add(X, X[:4], 4), r"x is \[8\], y \[4\]: expected both \[N\]"),
    (lambda: puzzles.add(X, X, 16), "N a multiple of 16"),
    (lambda: puzzles.add(X, X, 6), "block is 6: expected a power of two"),
    (lambda: puzzles.add(X, X.half(), 4), "y is torch.float16 on cpu: expected torch.float32 on cpu, as x"),
    (lambda: puzzles.add(X[::2], X[::2], 4), r"x has strides \[2\]: expected a contiguous tensor"),
    (lambda: puzzles.add(X.bfloat16(), X, 4), "x is torch.bfloat16: expected torch.float32 or torch.float16"),
    (lambda: puzzles.gaps(WIDE), r"times is \[3, 5\]: expected \[N\]"),
    (lambda: puzzles.gaps(X, 0), "block is 0"),
    (lambda: puzzles.row_sum(X), r"x is \[8\]: expected \[rows, 1 to 65536 columns\]"),
    (lambda: puzzles.row_sum(WIDE[:, :0]), r"x is \[3, 0\]"),
    (lambda: puzzles.row_sum(WIDE.T), "the elements of a row one after another"),
    (lambda: puzzles.row_sum(HUGE), "x spans 2,147,516,416 elements"),
    (lambda: puzzles.softmax(WIDE.double()), "x is torch.float64: expected torch.float32"),
    (lambda: puzzles.matmul(WIDE, WIDE), r"a is \[3, 5\], b \[3, 5\]: expected \[M, K\] and \[K, N\]"),
    (lambda: puzzles.matmul(WIDE.T, WIDE), r"a has strides \[1, 5\]"),
    (lambda: puzzles.matmul(HUGE, HUGE), "a has 2,147,516,416 elements: expected at most 2,147,483,648"),
    (lambda: puzzles.gather(WIDE, TABLE, 2), r"blocks is \[3, 5\]"),
    (lambda: puzzles.gather(BLOCKS, TABLE, 5), r"table is \[2\], torch.int32: expected int32 \[pages\] for 5 tokens"),
    (lambda: puzzles.gather(BLOCKS, TABLE.long(), 2), "torch.int64: expected int32"),
    (lambda: puzzles.gather(BLOCKS, TABLE + 1, 2), "table holds 1 to 3: expected blocks 0 to 2"),
    (lambda: puzzles.gather(BLOCKS, TABLE - 1, 2), "table holds -1 to 1"),
])
def test_what_they_cannot_do_is_refused(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
