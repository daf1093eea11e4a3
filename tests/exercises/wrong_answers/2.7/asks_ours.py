"""Asks ours."""

import torch

from minillm.numerics import grid

DIAGNOSIS = "forbidden"


def symmetric(x, bits, dims):
    return grid.symmetric(x, bits, dims)


def pack_int4(codes):
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_int4(packed):
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
