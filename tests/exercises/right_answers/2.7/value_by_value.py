"""Value by value."""

import torch


def symmetric(x, bits, dims):
    largest_code = int("1" * (bits - 1), 2)
    size = torch.maximum(x, -x)
    for d in dims:
        size = size.max(dim=d, keepdim=True).values
    scale = torch.where(size == 0, torch.ones_like(size), size / largest_code)
    nearest = torch.floor(x / scale + 0.5)
    return nearest.char(), scale


def pack_int4(codes):
    pairs = codes.reshape(*codes.shape[:-1], -1, 2)
    return pairs[..., 0] + 16 * pairs[..., 1]


def unpack_int4(packed):
    codes = packed.new_empty(*packed.shape[:-1], 2 * packed.shape[-1])
    codes[..., 0::2] = packed % 16
    codes[..., 1::2] = packed // 16
    return codes
