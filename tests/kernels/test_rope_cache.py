"""RoPE with the write to the cache: against float64, with slots anywhere; and compiled for chips without one."""

from __future__ import annotations

import far
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minillm.kernels import aot
from minillm.kernels.rope_cache import rope_and_store, rope_and_store_reference

from minillm.model.layers import apply_rope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # halves: one step of rounding
NAMES = ("q", "k", "v", "cos", "sin", "slots", "k_blocks", "v_blocks")


def arguments(tokens: int, heads: int, kv_heads: int, size: int, size_v: int, blocks: int, block_size: int,
              dtype: torch.dtype = torch.float32, padded: int = 0) -> dict[str, torch.Tensor]:
    """q, k and v as parts of one tensor's rows; slots permuted, every `padded`-th one -1; blocks full of NaN."""
    generator = torch.Generator().manual_seed(tokens * 1000 + size)
    sizes = [heads * size, kv_heads * size, kv_heads * size_v]
    qkv = torch.randn(tokens, sum(sizes), generator=generator).to(DEVICE, dtype)
    q, k, v = (part.unflatten(1, (count, -1)) for part, count in
               zip(qkv.split(sizes, dim=1), (heads, kv_heads, kv_heads)))
    angles = torch.rand(tokens, size // 2, generator=generator) * 6.3
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    if padded:
        slots[::padded] = -1
    k_blocks = torch.full((blocks, block_size, kv_heads, size), float("nan"), dtype=dtype, device=DEVICE)
    v_blocks = torch.full((blocks, block_size, kv_heads, size_v), float("nan"), dtype=dtype, device=DEVICE)
    values = (q, k, v, angles.cos().to(DEVICE, dtype), angles.sin().to(DEVICE, dtype), slots.to(DEVICE), k_blocks,
              v_blocks)
    return dict(zip(NAMES, values))


def check(given: dict[str, torch.Tensor]) -> None:
    """q, and every slot of the blocks, are the twin's in float64; what no slot names keeps its bits."""
    exact = {name: tensor if name == "slots" else tensor.double() for name, tensor in given.items()}
    wanted = rope_and_store_reference(**exact)
    got = rope_and_store(**given)
    dtype, tolerance = given["q"].dtype, TOLERANCE[given["q"].dtype]
    assert got.dtype == dtype
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
    untouched = torch.ones(given["k_blocks"].shape[:2].numel(), dtype=torch.bool, device=DEVICE)
    untouched[given["slots"][given["slots"] >= 0].long()] = False
    sentinel = torch.full((), float("nan"), dtype=dtype, device=DEVICE)
    whole_numbers = torch.int32 if dtype == torch.float32 else torch.int16
    for name in ("k_blocks", "v_blocks"):
        after = given[name].flatten(0, 1)
        torch.testing.assert_close(after.double(), exact[name].flatten(0, 1), rtol=tolerance, atol=tolerance,
                                   equal_nan=True)
        assert (after[untouched].view(whole_numbers) == sentinel.view(whole_numbers)).all()


@settings(max_examples=60)
@given(tokens=st.integers(0, 9), kv_heads=st.integers(1, 3), group=st.integers(1, 4), half=st.integers(1, 40),
       size_v=st.integers(1, 80), blocks=st.integers(1, 8), block_size=st.integers(9, 17), padded=st.integers(0, 3),
       dtype=st.sampled_from(DTYPES))
def test_it_agrees_with_float64(tokens: int, kv_heads: int, group: int, half: int, size_v: int, blocks: int,
                                block_size: int, padded: int, dtype: torch.dtype) -> None:
    check(arguments(tokens, kv_heads * group, kv_heads, 2 * half, size_v, blocks, block_size, dtype, padded))


@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_a_step_may_take_several_programs(size: int) -> None:
    check(arguments(71, 9, 3, size, size, 64, 16, padded=7))


def test_values_may_be_of_another_width_than_keys() -> None:
    check(arguments(3, 4, 4, 192, 128, 2, 16))


def test_angles_may_stay_in_float32_and_slots_be_32_bits() -> None:
    given = arguments(5, 4, 2, 16, 16, 2, 8, torch.bfloat16, padded=3)
    given |= {"cos": given["cos"].float(), "sin": given["sin"].float(), "slots": given["slots"].int()}
    check(given)


def test_the_twin_turns_as_the_model_does() -> None:
    given = {name: tensor if name == "slots" else tensor.double()
             for name, tensor in arguments(5, 4, 2, 16, 16, 2, 8).items()}
    rotated = rope_and_store_reference(**given)
    torch.testing.assert_close(rotated, apply_rope(given["q"], given["cos"], given["sin"]), rtol=0, atol=1e-12)
    keys = given["k_blocks"].flatten(0, 1)[given["slots"]]
    torch.testing.assert_close(keys, apply_rope(given["k"], given["cos"], given["sin"]), rtol=0, atol=1e-12)
    assert torch.equal(given["v_blocks"].flatten(0, 1)[given["slots"]], given["v"])


def test_the_inputs_are_left_alone() -> None:
    given = arguments(3, 4, 2, 8, 8, 1, 4)
    before = {name: given[name].clone() for name in NAMES[:6]}
    rope_and_store(**given)
    assert all(torch.equal(given[name], before[name]) for name in before)


def test_a_step_of_padding_alone_writes_nothing() -> None:
    given = arguments(4, 2, 1, 8, 8, 1, 4, padded=1)
    rope_and_store(**given)
    assert given["k_blocks"].isnan().all()
    assert given["v_blocks"].isnan().all()


@pytest.mark.parametrize(("name", "change", "words"), [
    ("q", lambda t: t[0], r"q is \[4, 8\]"), ("q", lambda t: t[..., :7], "even D of 2 to 256"),
    ("q", lambda t: torch.zeros(3, 4, 258), r"q is \[3, 4, 258\]"),
    ("q", lambda t: t[:, :3], "q has 3 heads and k 2: expected a multiple"),
    ("q", lambda t: t[:, :0], "q has 0 heads"),
    ("k", lambda t: t[:, :1], r"k is \[3, 1, 8\]: expected \[3, 2, 8\]"), ("k", lambda t: t[:2], r"k is \[2, 2, 8\]"),
    ("v", lambda t: t[:2], r"v is \[2, 2, 6\]: expected \[3, 2, 6\]"), ("v", lambda t: t[0], r"v is \[2, 6\]"),
    ("v", lambda t: torch.zeros(3, 2, 257), "D_v of 1 to 256"),
    ("cos", lambda t: t[:, :3], r"cos is \[3, 3\]: expected \[3, 4\]"), ("sin", lambda t: t[:1], r"sin is \[1, 4\]"),
    ("slots", lambda t: t[:2], r"slots is \[2\]: expected \[3\]"),
    ("k_blocks", lambda t: t[..., :4], r"k_blocks is \[2, 4, 2, 4\]"),
    ("k_blocks", lambda t: t[0], r"k_blocks is \[4, 2, 8\]"),
    ("v_blocks", lambda t: t[:1], r"v_blocks is \[1, 4, 2, 6\]: expected \[2, 4, 2, 6\]"),
    ("q", lambda t: t.double(), "q is torch.float64: expected float32, float16 or bfloat16"),
    ("k", lambda t: t.half(), "k is torch.float16: expected torch.float32"),
    ("v_blocks", lambda t: t.half(), "v_blocks is torch.float16"),
    ("cos", lambda t: t.half(), "cos is torch.float16: expected torch.float32"),
    ("slots", lambda t: t.float(), "slots is torch.float32: expected torch.int32 or torch.int64"),
    ("sin", lambda t: t.to("meta"), "sin is on meta: expected"),
    ("slots", lambda t: t.to("meta"), "slots is on meta"),
    ("k", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "k has strides"),
    ("cos", lambda t: t.T.contiguous().T, "cos has strides"),
    ("k_blocks", lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), "k_blocks has strides")])
def test_what_it_cannot_do_is_refused_before_anything_is_written(name: str, change, words: str) -> None:
    given = arguments(3, 4, 2, 8, 6, 2, 4)
    changed = {**given, name: change(given[name]).to("meta" if "meta" in words else DEVICE)}
    with pytest.raises(ValueError, match=words):
        rope_and_store(**changed)
    assert given["k_blocks"].isnan().all()
    assert given["v_blocks"].isnan().all()


def test_enough_warps_fit_to_keep_the_memory_busy() -> None:
    """Every head size on two chips; test_aot.py asks all five for spills."""
    reports = aot.compile_all(["sm_90", "gfx942"], ["rope_cache"])
    assert len(reports) == 10
    for report in reports:
        assert report.problems() == []
        assert report.shared_bytes == 0  # no value changes hands between threads
        assert report.occupancy().warps * 2 > report.occupancy().max_warps


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_slots_may_lie_behind_32_bits_of_values(kind: torch.dtype) -> None:
    given = arguments(2, 8, 8, 128, 128, 1, 4, torch.bfloat16)
    for name in ("k_blocks", "v_blocks"):
        given[name] = far.zeros(2**17 + 8, 16, 8, 128, device=DEVICE)
    given["slots"] = torch.tensor([2**21 + 100, 5], dtype=kind, device=DEVICE)
    rope_and_store(**given)
    assert torch.equal(given["v_blocks"].flatten(0, 1)[[2**21 + 100, 5]], given["v"])
    assert given["k_blocks"].flatten(0, 1)[2**21 + 100].abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
def test_it_stands_in_a_cuda_graph_and_blocks_may_be_far_away() -> None:
    """Slots written after capture are the ones used; the last lies behind 2.1·10⁹ values (bfloat16, 4.4 GB each)."""
    given = arguments(4, 32, 8, 128, 128, 1, 4, torch.bfloat16)
    rope_and_store(**given)  # compiles
    for name in ("k_blocks", "v_blocks"):
        given[name] = torch.zeros(2**17 + 8, 16, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rotated = rope_and_store(**given)
    given["slots"].copy_(torch.tensor([2**21 + 100, 5, -1, 0]))
    graph.replay()
    wide = {name: given[name] for name in NAMES[:5]}
    keys = apply_rope(wide["k"].float(), wide["cos"].float(), wide["sin"].float())
    torch.testing.assert_close(given["k_blocks"].flatten(0, 1)[2**21 + 100].float(), keys[0], rtol=2**-7, atol=2**-7)
    assert torch.equal(given["v_blocks"].flatten(0, 1)[[2**21 + 100, 5, 0]], given["v"][[0, 1, 3]])
    queries = apply_rope(wide["q"].float(), wide["cos"].float(), wide["sin"].float())
    torch.testing.assert_close(rotated.float(), queries, rtol=2**-7, atol=2**-7)
