"""The check of 2.7. A reader runs it with: minillm check 2.7"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from minillm.course.checks import Case, Check, Mistake
from minillm.course.compare import is_tensor, show

# 2.7

Dims = tuple[int, ...]
Pair = tuple[torch.Tensor, torch.Tensor]


def grid_cases() -> list[Case]:
    def case(about: str, x: list, bits: int, dims: Dims, dtype: torch.dtype = torch.float32) -> Case:
        values = torch.tensor(x, dtype=dtype)
        shown = f"x={show(values)}" if values.numel() <= 8 else f"x {list(values.shape)}, {str(dtype)[6:]}"
        return Case(about, {"x": values, "bits": bits, "dims": dims}, f"{shown}, bits={bits}, dims={dims}", "symmetric")

    block = [[[[(7 * t + 5 * h + 3 * d) % 11 - 5.2 + 40 * (b + h) for d in range(4)] for h in range(2)]
              for t in range(3)] for b in range(2)]
    return [  # no value lies half-way between two levels: it may be rounded either way
        case("one value", [127.0], 8, (0,)),
        case("values between the levels", [127.0, 3.4, -2.7, -60.8], 8, (0,)),
        case("steps of a half", [63.5, 1.2, -0.8], 8, (0,)),
        case("the largest is negative", [-254.0, 5.2, 90.6], 8, (0,)),
        case("four bits", [7.0, -3.4, 1.7], 4, (0,)),
        case("two bits", [-0.5, 0.2, 0.3], 2, (0,)),
        case("a scale for each row", [[127.0, 6.4], [-12.7, 0.43]], 8, (1,)),
        case("a scale for each column", [[127.0, 1.27], [-3.4, 0.216]], 8, (0,)),
        case("a row of zeros: its scale is positive all the same", [[0.0, 0.0], [7.0, -2.4]], 4, (1,)),
        case("two blocks of three tokens: a scale for each head of each", block, 8, (1, 3), torch.float64),
        case("the same, a scale for each token of a head", block, 4, (3,), torch.float64),
    ]


def packing_cases() -> list[Case]:
    def case(about: str, codes: list) -> Case:
        return Case(about, {"codes": torch.tensor(codes, dtype=torch.uint8)}, function="pack_int4")

    return [
        case("two codes", [1, 2]),
        case("the largest first", [15, 0]),
        case("the largest second", [3, 15]),
        case("four codes", [1, 2, 3, 4]),
        case("two rows", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        case("two blocks of one row", [[[9, 14]], [[0, 12]]]),
    ]


def unpacking_cases() -> list[Case]:
    def case(about: str, packed: list) -> Case:
        return Case(about, {"packed": torch.tensor(packed, dtype=torch.uint8)}, function="unpack_int4")

    return [
        case("one byte, 2 * 16 + 1", [33]),
        case("the byte's highest bit is set, 15 * 16 + 3", [243]),
        case("both codes are large, 9 * 16 + 14", [158]),
        case("two bytes", [33, 67]),
        case("two rows", [[33, 67], [101, 135]]),
        case("two blocks of one row", [[[233]], [[192]]]),
    ]


def called(function: Callable[..., Any], **args: Any) -> Any:
    """What came; of a group of zeros it only matters that the scale is a positive number, so any is shown as 1."""
    came = function(**args)
    if "x" not in args or not isinstance(came, (tuple, list)) or len(came) != 2 or not is_tensor(came[1]):
        return came
    codes, scale = came
    zero = args["x"].abs().amax(args["dims"], keepdim=True) == 0
    if scale.shape == zero.shape:
        scale = torch.where(zero & (scale > 0) & scale.isfinite(), torch.ones_like(scale), scale)
    return codes, scale


def absolute(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    return x.abs().amax(dims, keepdim=True)


def others(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    """One scale for all that are alike in the dimensions that should share one."""
    rest = tuple(d for d in range(x.dim()) if d not in dims)
    return x.abs().amax(rest, keepdim=True) if rest else x.abs()


def grids(levels: Callable[[int], float] = lambda bits: 2 ** (bits - 1) - 1,
          size: Callable[[torch.Tensor, Dims], torch.Tensor] = absolute,
          positive: bool = True, rounded: Callable[[torch.Tensor], torch.Tensor] = torch.round,
          low: Callable[[float], float] = lambda levels: -levels,
          high: Callable[[float], float] = lambda levels: levels,
          given: Callable[[torch.Tensor], torch.Tensor] = lambda scale: scale) -> Callable[..., Pair]:
    """symmetric with one of its parts put differently."""
    def symmetric(x: torch.Tensor, bits: int, dims: Dims) -> Pair:
        steps = levels(bits)
        scale = size(x, dims) / steps
        scale = scale.clamp(min=torch.finfo(x.dtype).tiny) if positive else scale
        return rounded(x / scale).clamp(low(steps), high(steps)).to(torch.int8), given(scale)

    return symmetric


def undivided(x: torch.Tensor, bits: int, dims: Dims) -> Pair:
    levels = 2 ** (bits - 1) - 1
    return x.round().clamp(-levels, levels).to(torch.int8), absolute(x, dims).clamp(min=1e-30) / levels


def multiplied(x: torch.Tensor, bits: int, dims: Dims) -> Pair:
    levels = 2 ** (bits - 1) - 1
    scale = absolute(x, dims).clamp(min=1e-30) / levels
    return (x * scale).round().clamp(-levels, levels).to(torch.int8), scale


def whole(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    return x.abs().amax()


def whole_kept(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    return x.abs().amax(tuple(range(x.dim())), keepdim=True)


def spread_out(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    """The one scale of the whole tensor, once for each group."""
    return x.abs().amax().expand(absolute(x, dims).shape)


ONE_SCALE = "The values along dims share a scale, and only they: a large value elsewhere must not coarsen these."
NO_ROOM = "int8 ends at 127: with 128 steps to each side the largest value has no code, and wraps round to -128."
UNSIGNED = "The sign takes one of the bits: to each side of 0 there are 2^(bits-1) - 1 steps, 127 for 8 bits."
SIGNED = "A group's largest value in size may be a negative one: take x.abs() before the maximum."
ZEROS = "0 / 0 is not a number: a group of zeros needs a scale above 0 (_positive sees to it)."
ROUNDING = "The nearest level is asked for: a cast to int8 cuts the fraction off. Round before it."

GRID = (
    Mistake("too-many-levels", UNSIGNED, like=grids(levels=lambda bits: 2**bits - 1)),
    Mistake("too-many-levels", UNSIGNED, like=grids(levels=lambda bits: 2**bits - 1,
                                                    low=lambda levels: -128, high=lambda levels: 127)),
    Mistake("too-many-levels", UNSIGNED, like=grids(levels=lambda bits: 2**bits)),
    Mistake("too-many-levels", UNSIGNED, like=grids(levels=lambda bits: 2**bits - 1,
                                                    low=lambda levels: -(levels // 2),
                                                    high=lambda levels: levels // 2)),
    Mistake("no-room-for-the-largest", NO_ROOM, like=grids(levels=lambda bits: 2 ** (bits - 1))),
    Mistake(
        "no-room-for-the-largest",
        "With 128 steps to each side the largest value has no code: it is cut to 127, and comes back too small.",
        like=grids(levels=lambda bits: 2 ** (bits - 1), high=lambda levels: levels - 1),
    ),
    Mistake(
        "half-a-level",
        "Half of 2^bits - 1 is no whole number: an exact 0 takes a code, and 2^(bits-1) - 1 are left to each side.",
        like=grids(levels=lambda bits: (2**bits - 1) / 2),
    ),
    Mistake(
        "bits-ignored",
        "127 is the largest code of 8 bits: with 4 bits it is 7.",
        like=grids(levels=lambda bits: 127),
    ),
    Mistake("signed-maximum", SIGNED, like=grids(size=lambda x, dims: x.amax(dims, keepdim=True))),
    Mistake("signed-maximum", SIGNED, like=grids(size=lambda x, dims: x.amax(dims, keepdim=True), positive=False)),
    Mistake("signed-maximum", SIGNED, like=grids(size=lambda x, dims: x.amax(dims, keepdim=True).abs())),
    Mistake(
        "spread-for-size",
        "This grid lies around 0, wherever the values lie: its ends are set by the largest in size, not by the spread.",
        like=grids(size=lambda x, dims: (x.amax(dims, keepdim=True) - x.amin(dims, keepdim=True)) / 2),
    ),
    Mistake(
        "spread-for-size",
        "This grid lies around 0, wherever the values lie: its ends are set by the largest in size, not by the spread.",
        like=grids(size=lambda x, dims: x.amax(dims, keepdim=True) - x.amin(dims, keepdim=True)),
    ),
    Mistake("one-scale", ONE_SCALE, like=grids(size=whole)),
    Mistake("one-scale", ONE_SCALE, like=grids(size=whole_kept)),
    Mistake("one-scale", ONE_SCALE, like=grids(size=spread_out)),
    Mistake(
        "other-dimensions",
        "The values along dims share a scale: the maximum goes along these dimensions, not along the others.",
        like=grids(size=others),
    ),
    Mistake(
        "last-dimension",
        "dims says along which dimensions the values share a scale: it is not always the last.",
        like=grids(size=lambda x, dims: x.abs().amax(-1, keepdim=True)),
    ),
    Mistake(
        "dimensions-dropped",
        "codes * scale has to broadcast: keep the dimensions that share a scale, with length 1 (keepdim=True).",
        like=grids(size=lambda x, dims: x.abs().amax(dims)),
    ),
    Mistake(
        "dimensions-dropped",
        "codes * scale has to broadcast: keep the dimensions that share a scale, with length 1 (keepdim=True).",
        like=lambda x, bits, dims: grids(given=lambda scale: scale.squeeze(dims))(x, bits, dims),
    ),
    Mistake("zero-scale", ZEROS, like=grids(positive=False)),
    Mistake("zero-scale", ZEROS, like=grids(positive=False, rounded=lambda steps: steps.nan_to_num(0).round())),
    Mistake("not-rounded", ROUNDING, like=grids(rounded=torch.trunc)),
    Mistake(
        "not-rounded",
        "The nearest level is asked for: floor takes the one below.",
        like=grids(rounded=torch.floor),
    ),
    Mistake(
        "scale-inverted",
        "x ≈ codes * scale is to hold: return the length of a step, not its inverse.",
        like=grids(given=lambda scale: 1 / scale),
    ),
    Mistake(
        "scale-inverted",
        "x ≈ codes * scale is to hold, so the codes are x / scale.",
        like=multiplied,
    ),
    Mistake(
        "scale-of-the-largest",
        "The scale is the length of one step: the largest value is `levels` steps away from 0.",
        like=grids(given=lambda scale: scale * 127),
    ),
    Mistake(
        "scale-of-the-largest",
        "The scale is the length of one step: the largest value is `levels` steps away from 0.",
        like=grids(levels=lambda bits: 1, low=lambda levels: -128, high=lambda levels: 127),
    ),
    Mistake(
        "not-divided",
        "A code counts steps: divide by their length, then round.",
        like=undivided,
    ),
)


def neighbours(codes: torch.Tensor) -> Pair:
    return codes[..., 0::2], codes[..., 1::2]


def halves(codes: torch.Tensor) -> Pair:
    return codes.chunk(2, dim=-1)


def packs(pair: Callable[[torch.Tensor], Pair] = neighbours,
          join: Callable[..., torch.Tensor] = lambda even, odd: even | (odd << 4)) -> Callable[..., torch.Tensor]:
    """pack_int4 with one of its parts put differently."""
    return lambda codes: join(*pair(codes))


PACKING = (
    Mistake(
        "order-swapped",
        "The even code takes the low four bits, the odd one the high four: they are the wrong way round.",
        like=packs(join=lambda even, odd: (even << 4) | odd),
    ),
    Mistake(
        "halves-for-neighbours",
        "Neighbours share a byte, codes 0 and 1, then 2 and 3: not the first half with the second.",
        like=packs(halves),
    ),
    Mistake(
        "not-shifted",
        "Both codes lie in the same four bits, one over the other: the odd one has to move up by four.",
        like=packs(join=lambda even, odd: even | odd),
    ),
    Mistake(
        "not-shifted",
        "Both codes lie in the same four bits, one over the other: the odd one has to move up by four.",
        like=packs(join=lambda even, odd: even + odd),
    ),
    Mistake(
        "times-fifteen",
        "15 is the largest code, but there are 16 of them: moving up by four bits is times 16.",
        like=packs(join=lambda even, odd: even + odd * 15),
    ),
    Mistake(
        "nothing-joined",
        "& keeps the bits that both have, and after the shift they have none in common: | brings them together.",
        like=packs(join=lambda even, odd: even & (odd << 4)),
    ),
    Mistake(
        "wrong-dimension",
        "Neighbours in the last dimension share a byte: codes[..., 0::2] takes every second there.",
        like=packs(lambda codes: (codes[0::2], codes[1::2])),
    ),
)


def unpacks(low: Callable[[torch.Tensor], torch.Tensor] = lambda packed: packed & 15,
            high: Callable[[torch.Tensor], torch.Tensor] = lambda packed: packed >> 4,
            join: Callable[..., torch.Tensor] = lambda low, high: torch.stack((low, high), dim=-1).flatten(-2),
            ) -> Callable[..., torch.Tensor]:
    """unpack_int4 with one of its parts put differently."""
    return lambda packed: join(low(packed), high(packed))


def signed(packed: torch.Tensor) -> torch.Tensor:
    return packed.view(torch.int8) >> 4


EXTENDED = "Of a signed byte, >> moves copies of the sign in from above: codes from 8 on get them too. Stay with uint8."

UNPACKING = (
    Mistake(
        "order-swapped",
        "The low four bits hold the even code, which comes first: they are the wrong way round.",
        like=unpacks(low=lambda packed: packed >> 4, high=lambda packed: packed & 15),
    ),
    Mistake(
        "halves-for-neighbours",
        "A byte's two codes are neighbours: low, high, low, high, not first all low ones and then all high ones.",
        like=unpacks(join=lambda low, high: torch.cat((low, high), dim=-1)),
    ),
    Mistake(
        "pairs-not-joined",
        "uint8 [..., 2n] is asked for: the pairs have to become one dimension (flatten).",
        like=unpacks(join=lambda low, high: torch.stack((low, high), dim=-1)),
    ),
    Mistake(
        "all-in-one-row",
        "Only the pairs become one dimension with the last: the dimensions before it stay.",
        like=unpacks(join=lambda low, high: torch.stack((low, high), dim=-1).flatten()),
    ),
    Mistake(
        "sign-extended",
        EXTENDED,
        like=unpacks(high=lambda packed: signed(packed).view(torch.uint8)),
    ),
    Mistake(
        "sign-extended",
        EXTENDED,
        like=unpacks(low=lambda packed: (packed & 15).to(torch.int8), high=signed),
    ),
    Mistake(
        "high-bits-left",
        "The odd code is still there, in the high four bits: & 15 keeps the low ones alone.",
        like=unpacks(low=lambda packed: packed),
    ),
    Mistake(
        "wrong-mask",
        "Four bits that are all set are 15 (0b1111): 16 has one bit, the fifth.",
        like=unpacks(low=lambda packed: packed & 16),
    ),
    Mistake(
        "wrong-mask",
        "Sixteen codes there are, 0 to 15: the low one is the remainder of 16.",
        like=unpacks(low=lambda packed: packed % 15),
    ),
    Mistake(
        "not-shifted",
        "The high four bits are kept, but where they lie they count sixteen times: move them down by four.",
        like=unpacks(high=lambda packed: packed & 240),
    ),
)

BITS = Check(
    "2.7",
    lambda: [*grid_cases(), *packing_cases(), *unpacking_cases()],
    call=called,
    names=("codes:", "scale:"),
    mistakes=(
        *(replace(mistake, function="symmetric") for mistake in GRID),
        *(replace(mistake, function="pack_int4") for mistake in PACKING),
        *(replace(mistake, function="unpack_int4") for mistake in UNPACKING),
    ),
)

CHECKS = (BITS,)
