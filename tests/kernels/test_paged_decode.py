"""Split-KV decode over a paged cache: against float64 over odd shapes, with codes, and without a look at its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import far
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from minillm.kernels import aot, merge, paged_decode
from minillm.kernels.decode_checks import HEAD_SIZES
from minillm.kernels.paged_decode import (
    Configuration,
    check_tables,
    choose_splits,
    configurations,
    decode_blocks,
)

from minillm.cache.quantized import encode_fp8, encode_int8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ENCODE = {"int8": encode_int8, "fp8": encode_fp8}


@dataclass
class Shape:
    """Rows of these lengths; `group` query heads on each of `kv_heads`."""

    lens: list[int]
    kv_heads: int = 2
    group: int = 2
    dim: int = 64
    value_dim: int = 64
    block_size: int = 16
    spare: int = 1  # pages of a table behind the longest row, naming no block


def inputs(shape: Shape, dtype: torch.dtype = torch.float32, codec: str | None = None, seed: int = 0) -> dict:
    """The arguments of `paged_decode`. Blocks lie anywhere; slots without a token hold NaN, and so do their scales."""
    generator = torch.Generator().manual_seed(seed)
    size, pages = shape.block_size, [-(-length // shape.block_size) for length in shape.lens]
    num_blocks = sum(pages) + 2
    free = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.full((len(pages), max(pages, default=0) + shape.spare), -1, dtype=torch.int32)
    used = torch.zeros(num_blocks, size, dtype=torch.bool)
    for row, length in enumerate(shape.lens):
        blocks = [free.pop() for _ in range(pages[row])]
        tables[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        for i in range(length):
            used[blocks[i // size], i % size] = True
    q = torch.randn(len(pages), shape.kv_heads * shape.group, shape.dim, generator=generator).to(dtype)
    found = {"q": q, "block_tables": tables, "context_lens": torch.tensor(shape.lens, dtype=torch.int32),
             "scale": shape.dim**-0.5}
    for kind, width in (("k", shape.dim), ("v", shape.value_dim)):
        values = torch.randn(num_blocks, size, shape.kv_heads, width, generator=generator).to(dtype)
        if codec:
            codes, scales = ENCODE[codec](values.float())
            codes[~used] = 0x7F  # NaN in FP8
            scales[~used.any(1)] = float("nan")
            found |= {f"{kind}_blocks": codes, f"{kind}_scales": scales}
        else:
            values[~used] = float("nan")
            found |= {f"{kind}_blocks": values}
    return {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def wide(arguments: dict) -> dict:
    """The same in float64; codes stay codes."""
    return {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in arguments.items()}


def check(arguments: dict, tolerance: float = 1e-5, **options) -> None:
    """Both results of the kernel, float32, against the twin in float64."""
    window = options.get("window")
    out, lse = paged_decode.paged_decode(**arguments, **options, return_lse=True)
    exact, exact_lse = paged_decode.paged_decode_reference(**wide(arguments), window=window, return_lse=True)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=tolerance)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


shapes = st.builds(
    Shape, lens=st.lists(st.integers(0, 70) | st.sampled_from([0, 1, 31, 32, 33]), min_size=1, max_size=3),
    kv_heads=st.integers(1, 2), group=st.sampled_from([1, 2, 3, 8]), dim=st.sampled_from(HEAD_SIZES),
    value_dim=st.sampled_from(HEAD_SIZES), block_size=st.sampled_from([1, 3, 8, 16, 128]), spare=st.integers(0, 2))


@settings(max_examples=40)
@given(shape=shapes, splits=st.sampled_from([None, 1, 2, 3, 9]), window=st.none() | st.integers(1, 80),
       seed=st.integers(0, 1000))
@example(shape=Shape([0, 0], spare=0), splits=None, window=None, seed=0)
@example(shape=Shape([0]), splits=2, window=1, seed=0)
@example(shape=Shape([1], kv_heads=1, group=1), splits=9, window=None, seed=0)
def test_it_agrees_with_float64(shape: Shape, splits: int | None, window: int | None, seed: int) -> None:
    check(inputs(shape, seed=seed), splits=splits, window=window)


@pytest.mark.parametrize("splits", [None, 1, 5])
def test_sixty_four_blocks_anywhere(splits: int | None) -> None:
    check(inputs(Shape([1021, 17], kv_heads=1, group=4, dim=80, value_dim=96)), splits=splits)


@pytest.mark.parametrize("group", [17, 64])
def test_a_group_of_more_than_sixteen_heads(group: int) -> None:
    check(inputs(Shape([40], kv_heads=1, group=group, dim=128, value_dim=128)))


@pytest.mark.parametrize("codec", ["int8", "fp8"])
@pytest.mark.parametrize(("splits", "window"), [(1, None), (3, None), (2, 37)])
def test_codes_of_a_quantised_cache_are_read_exactly(codec: str, splits: int, window: int | None) -> None:
    """float32 queries: nothing is rounded but by float32's own arithmetic, whatever the codes stand for."""
    check(inputs(Shape([90, 0, 33], group=3, dim=80, value_dim=64), codec=codec), splits=splits, window=window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_codes_of_fp8(dtype: torch.dtype) -> None:
    """A row of one key returns its V: the 254 numbers to the last bit, and 480 for the two that are none."""
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert expected.isnan().sum() == 2
    expected[0x7F], expected[0xFF] = 480.0, -480.0
    arguments = inputs(Shape([1], kv_heads=2, group=1, value_dim=128, block_size=1), dtype, "fp8")
    block = arguments["block_tables"][0, 0]
    arguments["v_blocks"][block, 0] = codes.view(2, 128)
    arguments["v_scales"][block] = 1.0
    out = paged_decode.paged_decode(**arguments)
    assert torch.equal(out.flatten().float(), expected)


def test_int8_codes_come_back_too() -> None:
    arguments = inputs(Shape([1], kv_heads=2, group=1, value_dim=128, block_size=1), torch.bfloat16, "int8")
    block, codes = arguments["block_tables"][0, 0], torch.arange(-128, 128, device=DEVICE)
    arguments["v_blocks"][block, 0] = codes.view(2, 128).to(torch.int8)
    arguments["v_scales"][block] = 1.0
    assert torch.equal(paged_decode.paged_decode(**arguments).flatten(), codes.bfloat16())


@pytest.mark.parametrize("codec", [None, "int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("splits", [1, 3])
def test_halves_err_at_most_twice_as_much_as_the_twin(dtype: torch.dtype, codec: str | None, splits: int) -> None:
    arguments = inputs(Shape([100, 7, 1], dim=128, value_dim=128), dtype, codec)
    out = paged_decode.paged_decode(**arguments, splits=splits)
    assert out.dtype == dtype
    exact = paged_decode.paged_decode_reference(**wide(arguments))
    if codec:  # whose scales make weights bfloat16
        arguments["q"] = arguments["q"].bfloat16()
    twin = paged_decode.paged_decode_reference(**arguments)
    assert (out - exact).abs().max() <= 2 * (twin - exact).abs().max() + 1e-3


def test_scales_too_small_for_float16_count() -> None:
    """V of about 1e-6 has FP8 scales of 1e-9, which float16 would turn into 0 before they met their codes."""
    arguments = inputs(Shape([50]), torch.float16, "fp8")
    arguments["v_scales"] *= 1e-6
    out = paged_decode.paged_decode(**arguments, splits=1).double() * 1e6
    exact = paged_decode.paged_decode_reference(**wide(arguments)) * 1e6
    assert (out - exact).abs().max() < 0.05
    assert exact.abs().max() > 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_scales_may_have_the_dtype_of_a_cache(dtype: torch.dtype) -> None:
    arguments = inputs(Shape([40]), codec="int8")
    for name in ("k_scales", "v_scales"):
        arguments[name] = arguments[name].to(dtype)
    check(arguments)


def test_no_rows_are_fine_and_inputs_are_left_alone() -> None:
    arguments = inputs(Shape([20, 3]))
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    paged_decode.paged_decode(**arguments)
    for name, value in before.items():
        torch.testing.assert_close(arguments[name], value, rtol=0, atol=0, equal_nan=True)
    for name in ("q", "block_tables", "context_lens"):
        arguments[name] = arguments[name][:0]
    out, lse = paged_decode.paged_decode(**arguments, return_lse=True)
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul", "ignore:All-NaN slice")  # of padding rows
@pytest.mark.parametrize("splits", [1, 3])
def test_keys_of_minus_infinity_weigh_nothing(splits: int) -> None:
    """Also where they fill the first tiles, and a whole split: -inf - -inf would be NaN."""
    arguments = inputs(Shape([150], kv_heads=1))
    arguments["q"].abs_()
    for page in arguments["block_tables"][0, :7]:  # 112 keys: three tiles of 32, and a part of one
        arguments["k_blocks"][page] = float("-inf")
    check(arguments, splits=splits)


@pytest.mark.parametrize("codec", [None, "int8", "fp8"])
def test_blocks_may_lie_behind_32_bits(codec: str | None) -> None:
    """The last of more than 2**31 values, or codes."""
    arguments = inputs(Shape([13], kv_heads=1, group=2, dim=128, value_dim=128), torch.bfloat16, codec)
    blocks, block = 2**20 + 8, int(arguments["block_tables"][0, 0])
    for name in ("k", "v"):
        near, scales = arguments[f"{name}_blocks"][block], arguments.get(f"{name}_scales")
        wide = far.zeros(blocks, 16, 1, 128 if codec is None else 64, device=DEVICE)
        arguments[f"{name}_blocks"] = wide.view(near.dtype)
        arguments[f"{name}_blocks"][-1] = near
        if codec:
            arguments[f"{name}_scales"] = far.zeros(blocks, 1, 1, 1, device=DEVICE).to(scales.dtype)
            arguments[f"{name}_scales"][-1] = scales[block]
    assert arguments["k_blocks"].numel() > 2**31
    arguments["block_tables"][0, 0] = blocks - 1
    out = paged_decode.paged_decode(**arguments)
    exact = paged_decode.paged_decode_reference(**wide_of_last(arguments))
    assert (out - exact).abs().max() < 0.02


def wide_of_last(arguments: dict) -> dict:
    """The last block alone, in float64."""
    last = {name: arguments[name][-1:] for name in ("k_blocks", "v_blocks", "k_scales", "v_scales")
            if arguments.get(name) is not None}
    return wide({**arguments, **last, "block_tables": torch.zeros_like(arguments["block_tables"])})


@pytest.mark.parametrize("tile", [16, 64])
def test_the_tile_does_not_matter(tile: int) -> None:
    check(inputs(Shape([77, 5])), splits=2, configuration=Configuration(tile, 4, 2))


class Recorder:
    """Stands in for a kernel: keeps what it is launched with."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []

    def __getitem__(self, grid: tuple):
        return lambda *arguments, **constants: self.launches.append((grid, arguments, constants))


@pytest.mark.parametrize("splits", [None, 1, 4])
def test_the_launcher_never_looks_at_its_tensors(monkeypatch: pytest.MonkeyPatch, splits: int | None) -> None:
    """Tensors on "meta" have no values: whatever would read one, and so wait for the device, raises."""
    decode, join = Recorder(), Recorder()
    monkeypatch.setattr(paged_decode, "paged_decode_kernel", decode)
    monkeypatch.setattr(merge, "merge_kernel", join)
    arguments = {name: value.to("meta") if isinstance(value, torch.Tensor) else value
                 for name, value in inputs(Shape([200, 7]), codec="int8").items()}
    with pytest.raises((RuntimeError, NotImplementedError)):
        arguments["context_lens"].max().item()
    out = paged_decode.paged_decode(**arguments, splits=splits)
    assert out.shape == (2, 4, 64)
    (grid, _, _), = decode.launches
    assert grid == (2 * 2, splits or grid[1])
    assert len(join.launches) == (grid[1] > 1)


@pytest.mark.parametrize(("pairs", "keys", "tile", "expected"), [
    (256, 4096, 64, 1),  # 32 rows of 8 heads on 132 processors: one round, nearly full
    (8, 4096, 64, 29),  # one row of 8 heads: 232 of 264 places, and 32 splits, the most here, would fill 256
    (8, 256, 64, 2), (8, 100, 64, 1), (1, 0, 64, 1), (0, 256, 64, 2),
    (265, 32768, 64, 9)])  # one too many for a round: 2,385 programs in 10 rounds, 90 % of their places
def test_splits_fill_the_chip(pairs: int, keys: int, tile: int, expected: int) -> None:
    assert choose_splits(pairs, keys, tile, programs=264) == expected


@given(pairs=st.integers(0, 3000), keys=st.integers(0, 200_000), tile=st.sampled_from([16, 32, 64, 128]),
       programs=st.integers(2, 700))
def test_splits_stay_within_bounds(pairs: int, keys: int, tile: int, programs: int) -> None:
    splits = choose_splits(pairs, keys, tile, programs)
    assert 1 <= splits <= merge.MAX_SPLITS
    assert splits == 1 or keys // splits >= 2 * tile


def test_configurations_are_those_the_tiles_allow() -> None:
    assert configurations("sm_90", 128, 128, 2, 4) == [(32, 4, 5), (64, 4, 3)]
    assert configurations("sm_80", 64, 64, 2, 1)[0] == (128, 4, 3)
    assert configurations("gfx942", 256, 256, 2, 8) == [(32, 4, 2)]
    assert configurations("sm_90", 128, 128, 1, 4)[0].tile == 32  # codes
    assert configurations("sm_90", 64, 64, 1, 4)[0].tile == 32
    assert configurations("sm_90", 64, 128, 2, 4)[0].tile == 64
    assert configurations("sm_90", 64, 64, 2, 64)[0].tile == 64  # 64 rows of 64 scores
    assert configurations("sm_90", 128, 128, 2, 64)[0].warps == 8
    assert configurations("sm_90", 128, 128, 4, 4)[0] == (16, 8, 5)  # float32
    assert configurations("sm_90", 64, 64, 4, 64)[0] == (16, 8, 5)
    for dim in HEAD_SIZES:
        assert all(config.tile >= 16 for size in (1, 2, 4) for config in configurations("sm_90", dim, dim, size, 1))


def changed(**changes):
    """Arguments of which some are replaced: name = function of the old value."""
    codec = changes.pop("codec", None)
    arguments = inputs(Shape([20, 3]), codec=codec)
    return arguments | {name: change(arguments.get(name)) for name, change in changes.items()}


@pytest.mark.parametrize(("changes", "words"), [
    ({"q": lambda q: q[0]}, r"q is \[4, 64\]"),
    ({"q": lambda q: q.double()}, "q is .*float64: expected"),
    ({"q": lambda q: q[:, :3].contiguous()}, "q has 3 heads and k_blocks 2: expected a multiple"),
    ({"q": lambda q: q[:, :0]}, "q has 0 heads"),
    ({"q": lambda q: q.repeat(1, 65, 1)}, "q has 130 heads on each of k_blocks': expected at most 128"),
    ({"q": lambda q: q.transpose(0, 1).contiguous().transpose(0, 1)}, "q has strides"),
    ({"q": lambda q: q.to("meta")}, "k_blocks is on cpu: expected meta" if DEVICE == "cpu" else "expected meta"),
    ({"k_blocks": lambda k: k[..., :32]}, r"k_blocks is .*32\]: expected \[num_blocks, block_size, H_kv, 64\]"),
    ({"k_blocks": lambda k: k[0]}, r"k_blocks is \[16, 2, 64\]"),
    ({"q": lambda q: q[..., :48], "k_blocks": lambda k: k[..., :48]}, "k_blocks has heads of 48 values"),
    ({"v_blocks": lambda v: v[..., :48]}, "v_blocks has heads of 48 values: expected one of"),
    ({"v_blocks": lambda v: v[:, :8]}, r"v_blocks is \[5, 8, 2, 64\]: expected"),
    ({"k_blocks": lambda k: k[:, :0], "v_blocks": lambda v: v[:, :0]}, "blocks of 0 slots"),
    ({"k_blocks": lambda k: k.half()}, "k_blocks is torch.float16: expected q's"),
    ({"v_blocks": lambda v: v.half()}, "v_blocks is torch.float16: expected q's"),
    ({"v_blocks": lambda v: v.to(torch.int8)}, "v_blocks is torch.int8: .*the same in K and V"),
    ({"v_blocks": lambda v: v[:, ::2], "k_blocks": lambda k: k[:, ::2]}, "k_blocks has strides"),
    ({"block_tables": lambda t: t.long()}, "block_tables is .*int64: expected"),
    ({"block_tables": lambda t: t[:1]}, r"block_tables is \[1, 3\]"),
    ({"block_tables": lambda t: t[0]}, r"block_tables is \[3\]"),
    ({"block_tables": lambda t: t.to("meta")}, "block_tables is on meta: expected"),
    ({"block_tables": lambda t: t[:, :2]}, "block_tables has strides"),
    ({"context_lens": lambda n: n[:1]}, r"context_lens is \[1\]"),
    ({"context_lens": lambda n: n.float()}, "context_lens is .*float32"),
    ({"k_scales": lambda _: torch.ones(5, 1, 2, 1)}, "k_scales is given where k_blocks is torch.float32"),
    ({"codec": "int8", "v_scales": lambda _: None}, "v_scales is None where k_blocks is torch.int8"),
    ({"codec": "fp8", "k_scales": lambda s: s[:, 0]}, r"k_scales is \[5, 2, 1\] .*: expected \[5, 1, 2, 1\]"),
    ({"codec": "fp8", "v_scales": lambda s: s.double()}, "v_scales is .*float64"),
    ({"codec": "fp8", "v_scales": lambda s: s.to("meta")}, "v_scales is on meta"),
    ({"codec": "fp8", "v_scales": lambda s: s.repeat(1, 1, 2, 1)[:, :, ::2]}, "v_scales is .*contiguous"),
    ({"window": lambda _: 0}, "window is 0: expected None, or 1 to"),
    ({"window": lambda _: 8.0}, "window is 8.0: expected None, or 1 to"),
    ({"splits": lambda _: 0}, "splits is 0: expected None, or 1 to 256"),
    ({"scale": lambda _: float("nan")}, "scale is nan: expected a finite number"),
    ({"scale": lambda _: torch.ones(())}, "scale is tensor"),
    ({"splits": lambda _: 1.5}, "splits is 1.5: expected None, or 1 to 256"),
    ({"splits": lambda _: 257}, "splits is 257"),
])
def test_what_it_cannot_do_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paged_decode.paged_decode(**changed(**changes))


@pytest.mark.parametrize(("tables", "lens", "words"), [
    ([[0, 1]], [1, 2], "block_tables has 1 rows: expected 2"),
    ([[0, 1]], [33], r"context_lens\[0\] is 33: expected 0 to 32, the slots of the row's 2 blocks"),
    ([[0], [1]], [3, -1], r"context_lens\[1\] is -1: expected 0 to 16"),
    ([[0], [1, 10]], [3, 17], r"block_tables\[1\] names block 10: expected 0 to 9"),
    ([[0, -1]], [17], r"block_tables\[0\] names block -1"),
])
def test_tables_are_checked_on_the_host(tables: list, lens: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_tables(tables, lens, num_blocks=10, block_size=16)


def test_what_lies_behind_a_row_is_not_checked() -> None:
    check_tables([[9, -1, 99], [], [5]], [16, 0, 0], num_blocks=10, block_size=16)


def test_a_twin_decodes_blocks_as_the_cache_does() -> None:
    codes, scales = encode_fp8(torch.randn(3, 4, 2, 64))
    expected = codes.view(torch.float8_e4m3fn).double() * scales
    assert torch.equal(decode_blocks(codes, scales, torch.float64), expected)


def test_it_compiles_without_spills() -> None:
    """test_aot.py asks every case. Decode multiplies 16 rows: mma, not the warp groups' instruction."""
    reports = aot.compile_all(["sm_90"], ["paged_decode"], ("decode d128 group 4",))
    found = {" ".join(report.name.split()[4:]): report.instructions for report in reports}
    assert found == {"bf16": ["mma"], "int8": ["mma"], "fp8": ["mma"], "fp32": [], "int8 fp32": []}
    assert [problem for report in reports for problem in report.problems()] == []


WIDE_COPIES = """
import json, re, triton
from triton.backends.compiler import GPUTarget
from minillm.kernels import aot, paged_decode
found = []
for case in paged_decode.cases():
    if case.name.startswith("decode d128 group 4 bf16") and "sm_90" in case.chips:
        compiled = triton.compile(aot.source(case), target=GPUTarget("cuda", 90, 32),
                                  options={"num_warps": case.num_warps, "num_stages": case.num_stages})
        copies = re.findall(r"cp\\.async\\.c[ag]\\.[^;]*?, (0x\\w+)", compiled.asm["ptx"])
        found.append([copies.count("0x10"), case.constexprs["TILE"] * 256 * 2 // (16 * 32 * case.num_warps)])
print(json.dumps(found))
"""


def test_k_and_v_are_copied_sixteen_bytes_at_a_time() -> None:
    """Asynchronously, into shared memory: in a thread's code, those of the loop and of one or two tiles before it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", WIDE_COPIES], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    (two_ahead, small), (one_ahead, large) = json.loads(run.stdout)
    assert (two_ahead, one_ahead) == (3 * small, 2 * large)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("splits", [None, 1, 4])
def test_a_captured_launch_follows_its_tensors(splits: int | None) -> None:
    """A CUDA graph is captured on some lengths and replayed on others: they are read as they are then."""
    arguments = inputs(Shape([3, 200, 899], dim=128, value_dim=128), torch.bfloat16)
    paged_decode.paged_decode(**arguments, splits=splits)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_decode.paged_decode(**arguments, splits=splits)
    for lens in ([1, 100, 500], [0, 200, 17]):
        arguments["context_lens"].copy_(torch.tensor(lens))
        graph.replay()
        exact = paged_decode.paged_decode_reference(**wide(arguments))
        assert (out - exact).abs().max() < 0.02
