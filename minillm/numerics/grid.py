"""Grids: a few evenly spaced values that stand for many, and the codes that name them.

`dims` are the dimensions that share one scale: the values along them are one group. Scales come back with those
dimensions kept as 1, so that codes * scale broadcasts. A group of zeros gets the smallest positive scale, never 0.
Contract: within the grid, |x - decoded| <= scale / 2; a value that lies on the grid comes back as it was.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn  # 1 sign, 4 exponent, 3 mantissa bits; no infinity, so that larger values fit
FP8_MAX = 448.0


def symmetric(x: torch.Tensor, bits: int, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes -(2^(bits-1) - 1) … 2^(bits-1) - 1 around an exact 0: x ≈ codes * scale.

    x of any shape -> codes int8 [same], scale [same, 1 along dims] in x's dtype, above 0 for zeros too. bits: 2 to 8.
    """
    levels = 2 ** (bits - 1) - 1
    scale = _positive(x.abs().amax(dims, keepdim=True) / levels)
    return (x / scale).round().clamp(-levels, levels).to(torch.int8), scale


def asymmetric(x: torch.Tensor, bits: int, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0 … 2^bits - 1 between the smallest and the largest value: x ≈ codes * scale + low.

    x of any shape -> codes uint8 [same], scale and low [same, 1 along dims] in x's dtype. The range is widened to hold
    0. For values that lie to one side of 0 this halves the steps of `symmetric`. bits: 2 to 8.
    """
    levels = 2**bits - 1
    low, high = (edge(x, dims, keepdim=True) for edge in (torch.amin, torch.amax))
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = _positive((high - low) / levels)
    return ((x - low) / scale).round().clamp(0, levels).to(torch.uint8), scale, low


def pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Two codes of 0 … 15 in a byte: uint8 [..., 2n] -> uint8 [..., n]. The even one takes the low four bits."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The codes that `pack_int4` packed: uint8 [..., n] -> uint8 [..., 2n]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def to_fp8(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 (E4M3) with one scale a group, that puts the largest value at 448: x ≈ codes.to(x.dtype) * scale.

    x of any shape -> codes float8_e4m3fn [same], scale [same, 1 along dims]. The steps grow with the value, so the
    error is relative: at most 1/16 of the value, until it is too small for the exponent. A plain cast has no scale,
    and turns what lies beyond 448 into 448 or NaN.
    """
    scale = _positive(x.abs().amax(dims, keepdim=True) / FP8_MAX)
    return (x / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """The scale, or the smallest positive number where it is 0: it will be divided by."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)
