"""By the inverse."""

import torch


def symmetric(x, bits, dims):
    ends = 2**bits // 2 - 1
    size = torch.max(x.amax(dims, keepdim=True), -x.amin(dims, keepdim=True)).clamp_min(1e-30)
    codes = torch.round(x * (ends / size)).clamp(-ends - 1, ends)
    return codes.type(torch.int8), size / ends


def pack_int4(codes):
    even, odd = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return ((odd << 4) ^ even).to(torch.uint8)


def unpack_int4(packed):
    high = packed >> 4
    low = packed - (high << 4)
    return torch.stack([low, high], -1).reshape(*packed.shape[:-1], -1)
