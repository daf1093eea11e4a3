"""Grids: the error bound, fixed points, packing and the edges of FP8."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.numerics import grid

ROWS = st.lists(st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4), min_size=1, max_size=4)
WIDTHS = st.integers(2, 8)


def decoded(parts) -> torch.Tensor:
    codes, scale, *low = parts
    return codes.to(scale.dtype) * scale + (low[0] if low else 0)


@settings(max_examples=200, deadline=None)
@given(ROWS, WIDTHS, st.sampled_from(["symmetric", "asymmetric"]))
def test_error_is_at_most_half_a_step_and_grid_values_stay(rows, bits, name) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    parts = getattr(grid, name)(x, bits, (1,))
    back, step = decoded(parts), parts[1]
    assert parts[0].shape == x.shape and step.shape == (len(rows), 1)
    assert ((x - back).abs() <= step / 2 * (1 + 1e-9) + 1e-300).all()
    again = getattr(grid, name)(back, bits, (1,))
    torch.testing.assert_close(decoded(again), back, rtol=1e-9, atol=1e-300)


@settings(max_examples=100, deadline=None)
@given(ROWS, WIDTHS)
def test_codes_stay_within_their_bits_and_zero_is_kept(rows, bits) -> None:
    x = torch.tensor(rows, dtype=torch.float64)
    codes, _ = grid.symmetric(x, bits, (0, 1))
    assert codes.dtype == torch.int8 and codes.abs().max() <= 2 ** (bits - 1) - 1
    assert (codes[x == 0] == 0).all()
    codes, _, low = grid.asymmetric(x, bits, (0, 1))
    assert codes.dtype == torch.uint8 and codes.max() <= 2**bits - 1
    assert low.item() <= 0


def test_groups_do_not_see_each_other() -> None:
    x = torch.tensor([[1.0, -127.0], [0.5, 0.25]])
    codes, scale = grid.symmetric(x, 8, (1,))
    torch.testing.assert_close(scale, torch.tensor([[1.0], [0.5 / 127]]))
    assert codes.tolist() == [[1, -127], [127, 64]]  # 63.5 rounds to the even neighbour


def test_one_sided_values_get_twice_the_steps() -> None:
    x = torch.linspace(0, 30, 100)
    assert grid.asymmetric(x, 4, (0,))[1].item() == pytest.approx(30 / 15)
    assert grid.symmetric(x, 4, (0,))[1].item() == pytest.approx(30 / 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_come_back_as_zeros(dtype) -> None:
    x = torch.zeros(2, 3, dtype=dtype)
    for parts in (grid.symmetric(x, 8, (1,)), grid.asymmetric(x, 4, (1,)), grid.to_fp8(x, (1,))):
        assert (parts[1] > 0).all() and (decoded(parts) == 0).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 15), min_size=2, max_size=32).filter(lambda codes: len(codes) % 2 == 0))
def test_packing_is_undone(codes) -> None:
    codes = torch.tensor(codes, dtype=torch.uint8)
    packed = grid.pack_int4(codes)
    assert packed.dtype == torch.uint8 and len(packed) == len(codes) // 2
    assert torch.equal(grid.unpack_int4(packed), codes)


def test_the_even_code_takes_the_low_bits() -> None:
    assert grid.pack_int4(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_fp8_error_is_relative(values) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    codes, scale = grid.to_fp8(x, (0,))
    smallest = scale.item() * 2.0**-6  # the smallest normal number: below it the steps stop shrinking
    bound = torch.where(x.abs() >= smallest, x.abs() / 16, scale * 2.0**-10)
    assert ((decoded((codes, scale)) - x).abs() <= bound * (1 + 1e-6) + 1e-300).all()


def test_fp8_scale_saves_what_a_plain_cast_loses() -> None:
    x = torch.tensor([1000.0, -3.0])
    plain = x.to(grid.FP8).float()
    assert math.isnan(plain[0]) or plain[0] == 448
    codes, scale = grid.to_fp8(x, (0,))
    torch.testing.assert_close(decoded((codes, scale)), x, rtol=1 / 16, atol=0)
