"""Fused residual add and RMSNorm: against float64, over odd shapes."""

from __future__ import annotations

import pytest
import torch
from minillm.kernels.rms_norm import add_rms_norm, add_rms_norm_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(tokens: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens * 1000 + width)
    x, residual = torch.randn(2, tokens, width, generator=generator) * 3
    weight = torch.rand(width, generator=generator) + 0.5
    return tuple(t.to(DEVICE, dtype) for t in (x, residual, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 7), (2, 64), (5, 576), (1, 1000), (4, 1536)])
def test_it_agrees_with_float64(tokens: int, width: int, dtype: torch.dtype) -> None:
    """float32 within 1e-5. Halves: one rounding step of the dtype, since Triton's interpreter truncates to bfloat16."""
    x, residual, weight = inputs(tokens, width, dtype)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert normed.dtype == total.dtype == dtype
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(total, x + residual, rtol=step, atol=0)
    exact, _ = add_rms_norm_reference(total.double(), torch.zeros_like(total).double(), weight.double(), 1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else step
    torch.testing.assert_close(normed.double(), exact, rtol=tolerance, atol=tolerance)


def test_what_is_normed_is_the_sum_as_it_is_stored() -> None:
    """Rounded to float16, as the unfused add leaves it. Of the sum before that, every fourth norm would differ."""
    x, residual, weight = inputs(20, 576, torch.float16)
    normed, _ = add_rms_norm(x, residual, weight, 1e-5)
    twin, _ = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert (normed != twin).float().mean() < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_twin_keeps_its_mean_wide(dtype: torch.dtype) -> None:
    """Values whose squares overflow float16 still come out right: the mean of squares is float32."""
    x = torch.full((2, 64), 300.0, dtype=dtype, device=DEVICE)
    for call in (add_rms_norm, add_rms_norm_reference):
        normed, _ = call(x, torch.zeros_like(x), torch.ones(64, dtype=dtype, device=DEVICE), 1e-5)
        torch.testing.assert_close(normed, torch.ones_like(normed), rtol=torch.finfo(dtype).eps, atol=0)


def test_the_inputs_are_left_alone_and_no_tokens_are_fine() -> None:
    x, residual, weight = inputs(3, 20, torch.float32)
    before = x.clone(), residual.clone()
    add_rms_norm(x, residual, weight)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
    assert add_rms_norm(x[:0], residual[:0], weight)[0].shape == (0, 20)


@pytest.mark.parametrize(("change", "words"), [
    (lambda x, r, w: (x[0], r, w), r"x is \[20\]"), (lambda x, r, w: (x, r[:, :5], w), r"residual \[3, 5\]"),
    (lambda x, r, w: (x, r, w[:3]), r"weight is \[3\]: expected \[20\]"),
    (lambda x, r, w: (x.double(), r.double(), w), "float64"), (lambda x, r, w: (x, r.half(), w), "float16"),
    (lambda x, r, w: (x.T.contiguous().T, r, w), r"x has strides \(1, 3\)"),
    (lambda x, r, w: (x, r, w.long()), "weight is torch.int64"),
    (lambda x, r, w: (x, r, w.double()), "weight is torch.float64"),
    (lambda x, r, w: (x, r.to("meta"), w), "residual is on meta"),
    (lambda x, r, w: (x, r, w.to("meta")), "weight is on meta"),
    (lambda x, r, w: (x[:, :0], r[:, :0], w[:0]), "have 0 values"),
    (lambda x, r, w: (x.new_ones(1, 16385), x.new_ones(1, 16385), x.new_ones(16385)), "have 16385 values")])
def test_what_it_cannot_do_is_refused(change, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        add_rms_norm(*change(*inputs(3, 20, torch.float32)))
