"""Fused SwiGLU: against float64, over odd shapes and rows that stand apart; and compiled for five chips without one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minillm.kernels import aot
from minillm.kernels.swiglu import configuration, swiglu, swiglu_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}  # halves: one step of rounding


def halves(tokens: int, width: int, dtype: torch.dtype, gap: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """gate and up, each a part of the rows of one [tokens, 2 * width + gap] tensor, NaN between them."""
    generator = torch.Generator().manual_seed(tokens * 1000 + width)
    both = torch.full((tokens, 2 * width + gap), float("nan"), dtype=dtype, device=DEVICE)
    both[:, :width] = torch.randn(tokens, width, generator=generator) * 4
    both[:, width + gap :] = torch.randn(tokens, width, generator=generator)
    return both[:, :width], both[:, width + gap :]


def check(gate: torch.Tensor, up: torch.Tensor) -> None:
    out = swiglu(gate, up)
    assert out.dtype == gate.dtype
    assert out.is_contiguous()
    exact = swiglu_reference(gate.double(), up.double())
    torch.testing.assert_close(out.double(), exact, rtol=TOLERANCE[gate.dtype], atol=TOLERANCE[gate.dtype] / 8)


@settings(max_examples=60)
@given(tokens=st.integers(0, 5), width=st.integers(1, 300), gap=st.integers(0, 3), dtype=st.sampled_from(DTYPES))
def test_it_agrees_with_float64(tokens: int, width: int, gap: int, dtype: torch.dtype) -> None:
    check(*halves(tokens, width, dtype, gap))


@pytest.mark.parametrize("width", [2047, 2048, 2049, 5000])
def test_a_row_may_take_several_programs(width: int) -> None:
    check(*halves(3, width, torch.float32))


def test_gate_and_up_may_lie_differently() -> None:
    gate, up = halves(4, 33, torch.float32, gap=2)
    both = swiglu(gate, up)
    assert torch.equal(swiglu(gate.contiguous(), up), both)
    assert torch.equal(swiglu(gate, up.contiguous()), both)


def test_the_twin_is_silu_times_up() -> None:
    gate, up = halves(3, 40, torch.float64)
    torch.testing.assert_close(swiglu_reference(gate, up), torch.nn.functional.silu(gate) * up, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_large_values_neither_overflow_nor_vanish() -> None:
    """silu(-200) is 0, though exp(200) is no float32; silu(200) is 200."""
    gate = torch.tensor([[-200.0, 200.0, 0.0]], device=DEVICE)
    up = torch.tensor([[3.0, 3.0, 3.0]], device=DEVICE)
    assert swiglu(gate, up).tolist() == swiglu_reference(gate, up).tolist() == [[0.0, 600.0, 0.0]]


def test_the_inputs_are_left_alone_and_nothing_is_fine() -> None:
    gate, up = (half.contiguous() for half in halves(3, 20, torch.float32))
    before = gate.clone(), up.clone()
    swiglu(gate, up)
    assert torch.equal(gate, before[0])
    assert torch.equal(up, before[1])
    assert swiglu(gate[:0], up[:0]).shape == (0, 20)
    assert swiglu(gate[:, :0], up[:, :0]).shape == (3, 0)


@pytest.mark.parametrize(("change", "words"), [
    (lambda g, u: (g[0], u), r"gate is \[20\]"), (lambda g, u: (g, u[:, :5]), r"up \[3, 5\]: expected both \[T, N\]"),
    (lambda g, u: (g.double(), u.double()), "float64"), (lambda g, u: (g, u.half()), "up torch.float16"),
    (lambda g, u: (g.T.contiguous().T, u), r"gate has strides \(1, 3\)"),
    (lambda g, u: (g[:, ::2], u[:, ::2].contiguous()), "gate has strides"),
    (lambda g, u: (g, u.T.contiguous().T), "up has strides"),
    (lambda g, u: (g, u.to("meta")), "up on meta: expected one device")])
def test_what_it_cannot_do_is_refused(change, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        swiglu(*change(*halves(3, 20, torch.float32)))


@pytest.mark.parametrize("width", [1, 31, 576, 1536, 14336])
def test_a_thread_has_at_most_sixteen_values(width: int) -> None:
    block, warps = configuration(width)
    assert block & (block - 1) == 0
    assert block <= 16 * 32 * warps
    assert warps in (1, 2, 4)


def test_it_compiles_for_five_chips_without_spills() -> None:
    reports = aot.compile_all(modules=["swiglu"])
    assert {report.chip for report in reports} == set(aot.CHIPS)
    assert [problem for report in reports for problem in report.problems()] == []
    assert all(report.shared_bytes == 0 for report in reports)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
def test_rows_behind_two_to_the_31_values_come_out_right() -> None:
    """[T, N] of 2.1·10⁹ values in bfloat16, 4.3 GB each."""
    gate = torch.ones(150_000, 14_336, dtype=torch.bfloat16, device=DEVICE)
    out = swiglu(gate, gate)
    expected = swiglu_reference(gate[:1], gate[:1])
    assert torch.equal(out[-1:], expected)
    assert torch.equal(out[:1], expected)
