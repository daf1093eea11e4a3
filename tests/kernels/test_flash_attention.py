"""FlashAttention: against float64 over ragged batches, contiguous and paged; what it may not read; what it refuses."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import far
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minillm.kernels import prefill_plan
from minillm.kernels.flash_attention import (
    HEAD_SIZES,
    cases,
    flash_attention,
    flash_attention_reference,
    plan_tiles,
)
from minillm.kernels.prefill_plan import Configuration

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Configuration(16, 16, 4, 1)
NAN = float("nan")


@dataclass
class Inputs:
    """A batch, and how it is to be attended to."""

    query_lens: list[int]
    key_lens: list[int]
    heads: int = 2
    kv_heads: int = 1
    dim: int = 64
    value_dim: int = 64
    causal: bool = True
    window: int | None = None
    block_size: int | None = None
    seed: int = 0

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """(q, k, v), block tables. Paged, the blocks are permuted, and slots that no row uses hold NaN."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = ((sum(self.query_lens), self.heads, self.dim), (sum(self.key_lens), self.kv_heads, self.dim),
                  (sum(self.key_lens), self.kv_heads, self.value_dim))
        q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
        if self.block_size is None:
            return (q, k, v), None
        pages = [-(-length // self.block_size) for length in self.key_lens]
        blocks = torch.randperm(sum(pages) + 1, generator=generator)
        # behind a row's last page: a block of another row, or of none
        tables = torch.full((len(pages), max([*pages, 1]) + 1), int(blocks[-1]), dtype=torch.int32)
        paged = [torch.full((len(blocks), self.block_size, *t.shape[1:]), NAN, dtype=dtype, device=DEVICE)
                 for t in (k, v)]
        for row, rows in enumerate(zip(k.split(self.key_lens), v.split(self.key_lens))):
            tables[row, : pages[row]] = blocks[sum(pages[:row]) : sum(pages[: row + 1])]
            for store, values in zip(paged, rows):
                for j, value in enumerate(values):
                    store[tables[row, j // self.block_size], j % self.block_size] = value
        return (q, *paged), tables

    def attend(self, attention, dtype: torch.dtype, computed_in: torch.dtype | None = None,
               **more) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, lse) by `attention`, from inputs rounded to dtype."""
        tensors, tables = self.tensors(dtype)
        return attention(*(t.to(computed_in or dtype) for t in tensors), self.query_lens, self.key_lens,
                         1 / math.sqrt(self.dim), causal=self.causal, window=self.window, block_tables=tables,
                         return_lse=True, **more)


def check_float32(inputs: Inputs, configuration: Configuration | None = None) -> None:
    out, lse = inputs.attend(flash_attention, torch.float32, configuration=configuration)
    exact, exact_lse = inputs.attend(flash_attention_reference, torch.float32, torch.float64)
    assert (out.dtype, lse.dtype) == (torch.float32, torch.float32)
    assert not (out.requires_grad or lse.requires_grad)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


lengths = st.one_of(st.sampled_from([0, 1, 15, 16, 17, 31, 32, 33]), st.integers(0, 50))


@st.composite
def batches(draw: st.DrawFn) -> Inputs:
    """Rows of any lengths: without queries, without keys, with more of the one or of the other."""
    rows = draw(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=3))
    kv_heads = draw(st.sampled_from([1, 2]))
    causal = draw(st.booleans())
    return Inputs([queries for queries, _ in rows], [keys for _, keys in rows],
                  heads=kv_heads * draw(st.sampled_from([1, 2])), kv_heads=kv_heads, causal=causal,
                  window=draw(st.none() | st.integers(1, 60)) if causal else None,
                  block_size=draw(st.none() | st.integers(1, 64)), seed=draw(st.integers(0, 2**16)))


@settings(max_examples=40)
@given(batches())
def test_it_agrees_with_float64(inputs: Inputs) -> None:
    check_float32(inputs, SMALL)


@pytest.mark.parametrize("dim", HEAD_SIZES)
@pytest.mark.parametrize("block_size", [None, 16])
def test_every_head_size(dim: int, block_size: int | None) -> None:
    check_float32(Inputs([33, 1], [40, 20], dim=dim, value_dim=dim, block_size=block_size))


@pytest.mark.parametrize(("dim", "value_dim"), [(64, 80), (96, 64)])
def test_k_and_v_may_have_different_head_sizes(dim: int, value_dim: int) -> None:
    check_float32(Inputs([20], [37], dim=dim, value_dim=value_dim))


@pytest.mark.parametrize("configuration", [Configuration(16, 64, 4, 1), Configuration(64, 16, 4, 1),
                                           Configuration(128, 64, 8, 2)])
@pytest.mark.parametrize("window", [None, 1, 23])
def test_any_size_of_tile_gives_the_same(configuration: Configuration, window: int | None) -> None:
    check_float32(Inputs([70, 3, 130], [70, 90, 128], window=window), configuration)


def test_64_blocks_in_any_order() -> None:
    check_float32(Inputs([17], [64 * 2], block_size=2))


def test_more_queries_than_keys_leave_the_first_without_any() -> None:
    """Bottom-right aligned: 40 queries of 8 keys stand at -32 … 7, and those below 0 see nothing."""
    out, lse = Inputs([40], [8]).attend(flash_attention, torch.float32, configuration=SMALL)
    assert torch.equal(out[:32], torch.zeros_like(out[:32]))
    assert torch.isneginf(lse[:32]).all()
    assert lse[32:].isfinite().all()


def test_the_twin_against_a_softmax_by_hand() -> None:
    """Three keys with scores ln 1, ln 2, ln 3 give weights 1/6, 2/6, 3/6; the first two alone 1/3, 2/3."""
    q, k, v = (torch.zeros(n, 1, 64, dtype=torch.float64) for n in (2, 3, 3))
    q[:, 0, 0] = 1
    k[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0]).double().log()
    v[:, 0] = torch.eye(3, 64, dtype=torch.float64)
    out, lse = flash_attention_reference(q, k, v, [2], [3], 1.0, return_lse=True)
    expected = torch.tensor([[1 / 3, 2 / 3, 0], [1 / 6, 2 / 6, 3 / 6]], dtype=torch.float64)
    torch.testing.assert_close(out[:, 0, :3], expected)
    torch.testing.assert_close(lse[:, 0].exp(), torch.tensor([3.0, 6.0], dtype=torch.float64))
    windowed = flash_attention_reference(q, k, v, [2], [3], 1.0, window=1)
    torch.testing.assert_close(windowed[:, 0, :3], torch.eye(3, dtype=torch.float64)[1:])  # itself only


def test_heads_of_a_group_share_their_key_head() -> None:
    """Head h reads K/V head h // group: constant values show which."""
    inputs = Inputs([5], [5], heads=6, kv_heads=2)
    (q, k, v), _ = inputs.tensors()
    v[:] = torch.tensor([1.0, 2.0], device=DEVICE)[:, None]
    out = flash_attention(q, k, v, [5], [5], 1.0)
    torch.testing.assert_close(out[0, :, 0].cpu(), torch.tensor([1.0, 1, 1, 2, 2, 2]))


@pytest.mark.parametrize("inputs", [
    Inputs([50, 1], [50, 90], heads=4, kv_heads=2), Inputs([33], [80], window=20), Inputs([40], [70], causal=False),
    Inputs([64, 7], [64, 30], dim=128, value_dim=128, block_size=16)])
def test_bfloat16_errs_as_its_twin_does(inputs: Inputs) -> None:
    """Within twice the twin's error against float64, plus 1e-3."""
    exact, exact_lse = inputs.attend(flash_attention_reference, torch.bfloat16, torch.float64)
    out, lse = inputs.attend(flash_attention, torch.bfloat16)
    twin, _ = inputs.attend(flash_attention_reference, torch.bfloat16)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    assert (out.double() - exact).abs().max() <= 2 * (twin.double() - exact).abs().max() + 1e-3
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**40])
def test_a_window_of_more_than_32_bits_shows_everything(window: int) -> None:
    inputs = Inputs([40], [8])
    wide, _ = replace(inputs, window=window).attend(flash_attention, torch.float32)
    torch.testing.assert_close(wide, inputs.attend(flash_attention, torch.float32)[0], rtol=0, atol=0)


def with_nan(inputs: Inputs, keys: slice) -> torch.Tensor:
    """Whether each query's result is finite when these keys, and their values, are NaN."""
    (q, k, v), _ = inputs.tensors()
    k[keys], v[keys] = NAN, NAN
    out = flash_attention(q, k, v, inputs.query_lens, inputs.key_lens, 0.1, causal=inputs.causal, window=inputs.window,
                          configuration=SMALL)
    return out.isfinite().all(-1).all(-1).cpu()


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_tiles_that_the_mask_hides_wholly_are_not_read() -> None:
    """A hidden key of a tile that is read has weight 0, and 0 · NaN is NaN: finite results tell what was left out."""
    ahead = with_nan(Inputs([64], [64]), slice(32, 64))
    assert ahead.tolist() == [True] * 32 + [False] * 32
    behind = with_nan(Inputs([64], [64], window=16), slice(0, 16))  # queries 32 to 47 see keys 17 to 47
    assert behind.tolist() == [False] * 32 + [True] * 32
    assert with_nan(Inputs([16], [48], window=1), slice(0, 32)).all()
    assert not with_nan(Inputs([16], [48], causal=False), slice(0, 16)).any()


def test_a_row_never_reads_its_neighbours_keys() -> None:
    inputs = Inputs([20, 20, 20], [20, 5, 20])
    assert with_nan(inputs, slice(20, 25)).tolist() == [True] * 20 + [False] * 20 + [True] * 20


@pytest.mark.parametrize("paged", [True, False])
def test_keys_may_lie_behind_32_bits(paged: bool) -> None:
    """The last 13 of more than 2**31 values: in the last block, or of the last row."""
    (q, k, v), _ = Inputs([13], [16], dim=128, value_dim=128).tensors(torch.bfloat16)
    rows = 2**24 + 128
    tensors = [far.zeros(rows, 1, 128, device=DEVICE) for _ in "kv"]
    assert tensors[0].numel() > 2**31
    tables, query_lens, key_lens = None, [0, 13], [rows - 16, 16]
    for tensor, near in zip(tensors, (k, v)):
        tensor[-16:] = near
    if paged:
        tensors = [tensor.view(-1, 16, 1, 128) for tensor in tensors]
        tables, query_lens, key_lens = torch.tensor([[rows // 16 - 1]], dtype=torch.int32), [13], [16]
    out = flash_attention(q, *tensors, query_lens, key_lens, 0.1, block_tables=tables)
    exact = flash_attention_reference(q.double(), k.double(), v.double(), [13], [16], 0.1)
    assert (out - exact).abs().max() < 0.02


def test_rows_without_queries_and_batches_without_rows() -> None:
    check_float32(Inputs([0, 4, 0], [9, 4, 0]))
    for inputs in (Inputs([], []), Inputs([0], [7]), Inputs([0], [7], block_size=4)):
        out, lse = inputs.attend(flash_attention, torch.float32)
        assert (out.shape, lse.shape) == ((0, 2, 64), (0, 2))


def test_views_of_one_tensor_need_no_copy() -> None:
    """q, k and v as they lie in one projection's result, and keys by head: [H_kv, S, D] transposed."""
    qkv = torch.randn(20, 8, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    q, k, v = qkv.split([4, 2, 2], dim=1)
    expected = flash_attention_reference(q, k, v, [20], [20], 0.1)
    torch.testing.assert_close(flash_attention(q, k, v, [20], [20], 0.1), expected, rtol=1e-5, atol=1e-5)
    by_head = k.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(flash_attention(q, by_head, v, [20], [20], 0.1), expected, rtol=1e-5, atol=1e-5)


def test_a_plan_is_shared_and_lists_the_heaviest_tiles_first() -> None:
    query_lens, key_lens = [40, 0, 3], [40, 9, 100]
    (q, k, v), _ = Inputs(query_lens, key_lens).tensors()
    plan = plan_tiles(query_lens, key_lens, q, block_m=16)
    # row, first query, queries, keys, where they begin; queries 0 to 2 of row 2 see up to 100 keys
    assert plan.tiles.tolist() == [[2, 0, 3, 100, 40, 49], [0, 32, 40, 40, 0, 0], [0, 16, 40, 40, 0, 0],
                                   [0, 0, 40, 40, 0, 0]]
    windowed = plan_tiles([40, 3], [40, 100], q[:43], window=4, block_m=16).tiles
    assert windowed[:, :2].tolist() == [[0, 16], [0, 0], [0, 32], [1, 0]]  # 19, 16, 11 and 6 keys
    expected = flash_attention_reference(q, k, v, query_lens, key_lens, 0.1)
    for _ in range(2):
        torch.testing.assert_close(flash_attention(q, k, v, query_lens, key_lens, 0.1, plan=plan), expected,
                                   rtol=1e-5, atol=1e-5)
    for block_m in (-4, 0, 7, 8, 24):
        with pytest.raises(ValueError, match=f"block_m is {block_m}: expected a power of two, at least 16"):
            plan_tiles(query_lens, key_lens, q, block_m=block_m)
    with pytest.raises(ValueError, match=r"plan is for query_lens \[40, 0, 3\]"):
        flash_attention(q, k, v, [40, 3, 0], key_lens, 0.1, plan=plan)


def call(inputs: Inputs, **changes) -> None:
    tensors, tables = inputs.tensors()
    arguments = dict(zip("qkv", tensors), query_lens=inputs.query_lens, key_lens=inputs.key_lens, scale=0.1,
                     causal=inputs.causal, window=inputs.window, block_tables=tables)
    for name, change in changes.items():
        arguments[name] = change(arguments[name]) if callable(change) else change
    flash_attention(**arguments)


@pytest.mark.parametrize(("changes", "words"), [
    ({"q": lambda q: q[0]}, r"q is \[2, 64\]"), ({"q": lambda q: q.double()}, "float64"),
    ({"q": lambda q: q.repeat(1, 2, 1)[:, :3]}, "q has 3 heads and k 2: expected a multiple"),
    ({"q": lambda q: q[..., :63]}, r"k is \[5, 2, 64\]: expected \['S', 'H_kv', 63\]"),
    ({"q": lambda q: q[..., :48], "k": lambda k: k[..., :48]}, "q has heads of 48 values: expected one of"),
    ({"v": lambda v: v[..., :32]}, "v has heads of 32 values"), ({"v": lambda v: v[:4]}, r"v is \[4, 2, 64\]"),
    ({"k": lambda k: k.half()}, "k is torch.float16"), ({"v": lambda v: v.to("meta")}, "v is torch.float32 on meta"),
    ({"k": lambda k: k.transpose(1, 2).contiguous().transpose(1, 2)}, "k has strides"),
    ({"query_lens": [3, 1]}, r"query_lens sums to 4: expected 5"), ({"query_lens": [6, -1]}, "no length below 0"),
    ({"key_lens": [5]}, "key_lens has 1 rows: expected 2"), ({"key_lens": [3, 3]}, "key_lens sums to 6: expected 5"),
    ({"window": 0}, "window is 0"), ({"window": 3.0}, "window is 3.0, causal True: expected None, or a whole number"),
    ({"window": 3, "causal": False}, "window is 3, causal False"),
    ({"scale": 0.0}, "scale is 0.0"), ({"scale": NAN}, "scale is nan"),
    ({"scale": 3e38}, "scale is 3e.38: expected a number above 0 and below 1e38"),
    ({"scale": torch.ones(())}, "scale is tensor")])
def test_what_it_cannot_do_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(Inputs([3, 2], [3, 2], kv_heads=2), **changes)


@pytest.mark.parametrize(("changes", "words"), [
    ({"block_tables": lambda t: t.long()}, "int64"), ({"block_tables": lambda t: t[:1]}, r"block_tables is \[1, 3\]"),
    ({"block_tables": lambda t: t[:, :1]}, "key_lens has 7: expected at most 4"),
    ({"block_tables": lambda t: t.fill_(4)}, r"block_tables\[0\] names block 4: expected 0 to 3"),
    ({"block_tables": lambda t: t.fill_(-1)}, r"block_tables\[0\] names block -1"),
    ({"block_tables": lambda t: t.T.contiguous().T}, "block_tables has strides"),
    ({"block_tables": lambda t: t.to("meta")}, "block_tables is on meta"),
    ({"k": lambda k: k[:, :, 0]}, "k is"), ({"k": lambda k: k[::2], "v": lambda v: v[::2]}, "k is .* strides")])
def test_what_it_cannot_do_with_blocks_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(Inputs([3, 2], [7, 2], block_size=4), **changes)


def test_a_plan_serves_every_default_of_a_chip() -> None:
    """Made without a look at k or v, it must have the block_m that the launch would choose."""
    assert {case.chips[0] for case in cases()} == set(prefill_plan.TILES)
    for chip in prefill_plan.TILES:
        for dim in HEAD_SIZES:
            for size in (2, 4):
                plain, scattered = (prefill_plan.configurations(chip, dim, size, kind) for kind in (False, True))
                assert plain[0].block_m == scattered[0].block_m


ROWS_APART_BY_ONE = """
from dataclasses import replace
from minillm.kernels import aot, flash_attention

for kind in ("full", "window"):
    case = flash_attention.case(kind, 64, "bf16", "sm_80")
    ones = dict.fromkeys(("k_row", "v_row"), 1)
    signature = {name: type for name, type in case.signature.items() if name not in ones}
    aot.compile_case(replace(case, signature=signature, constexprs={**case.constexprs, **ones}), "sm_80")
"""


def test_a_stride_of_one_compiles() -> None:
    """One row of keys may have any stride, and Triton makes a 1 a constant, which has no method `to`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", ROWS_APART_BY_ONE], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dim", HEAD_SIZES)
def test_on_a_gpu(dim: int) -> None:
    """Compiled, with the chip's own tiles, over lengths of many of them."""
    base = Inputs([1000, 1, 129], [1500, 700, 129], heads=4, kv_heads=2, dim=dim, value_dim=dim)
    for inputs in (base, replace(base, window=300), replace(base, causal=False), replace(base, block_size=16)):
        test_bfloat16_errs_as_its_twin_does(inputs)
        check_float32(inputs)
