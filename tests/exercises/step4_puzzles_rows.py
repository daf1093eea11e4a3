"""The checks of 4.3 and 4.4, the Triton puzzles over rows. A reader runs them with: minillm check 4.3"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from minillm.course.checks import Case, Mistake
from minillm.course.triton_checks import NAN, NO_KERNEL, gives, kernel_check, strays


def row_case(about: str, rows: list[list[float]], gap: int = 0, dtype: torch.dtype = torch.float32) -> Case:
    """Rows with `gap` elements between them."""
    x = torch.tensor(rows, dtype=dtype)
    values = ", ".join("[" + ", ".join(f"{value:g}" for value in row) + "]" for row in rows)
    shown = f"x=[{values}], width={x.shape[1]}, row_stride={x.shape[1] + gap}"
    return Case(about, {"x": x, "gap": gap}, shown)


def apart(x: torch.Tensor, gap: int) -> dict[str, torch.Tensor]:
    """x as the columns of a wider tensor."""
    wide = torch.full((x.shape[0], x.shape[1] + gap), NAN, dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    return {"x": wide[:, : x.shape[1]]}


def block_of(x: torch.Tensor) -> int:
    """The power of two that a row fits into."""
    return 1 << (x.shape[1] - 1).bit_length()


def from_memory(x: torch.Tensor, gap: int, begin: Callable[[int], int], count: int) -> torch.Tensor:
    """`count` values from place begin(row) on, of what lies in memory: NaN between the rows and behind the last."""
    wide = apart(x, gap)["x"]
    memory = torch.full((4 * (x.shape[1] + gap) * len(x) + 64,), NAN, dtype=x.dtype)
    memory.as_strided(wide.shape, wide.stride()).copy_(x)
    return torch.stack([memory[begin(row) : begin(row) + count] for row in range(len(x))])


def padded(x: torch.Tensor, value: float) -> torch.Tensor:
    """Rows filled up to a whole block."""
    return torch.nn.functional.pad(x, (0, block_of(x) - x.shape[1]), value=value)


def row_mistakes(of_row: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Mistake, ...]:
    """Mistakes in finding a row, with what is then made of it: of_row [M, BLOCK or width] -> what is stored."""
    return (
        Mistake(
            "rows-by-width",
            "Where a row begins is told by row_stride: rows may lie further apart than they are wide.",
            when=gives(lambda x, gap: of_row(from_memory(x, gap, lambda row: row * x.shape[1], x.shape[1])),
                       outside="load"),
        ),
        Mistake(
            "rows-by-block",
            "BLOCK is how many columns are computed, not how far rows lie apart: that is row_stride.",
            when=gives(lambda x, gap: of_row(from_memory(x, gap, lambda row: row * block_of(x), x.shape[1])),
                       outside="load"),
        ),
        Mistake(
            "rows-by-one",
            "The program's number counts rows: row 1 begins row_stride elements after row 0, not one.",
            when=gives(lambda x, gap: of_row(from_memory(x, gap, lambda row: row, x.shape[1])), outside="load"),
        ),
        Mistake(
            "first-row-only",
            "Every program loads row 0: where a row begins depends on the program's number.",
            when=gives(lambda x, gap: of_row(x[:1].expand(*x.shape))),
        ),
    )


def sum_cases() -> list[Case]:
    return [
        row_case("one row", [[1, 2]]),
        row_case("two rows", [[1, 2], [4, 8]]),
        row_case("rows that do not fill a block", [[1, 2, 4], [8, 16, 32]]),
        row_case("rows that lie apart", [[1, 2, 4], [8, 16, 32]], gap=2),
        row_case("full blocks that lie apart", [[1, 2], [4, 8]], gap=1),
        row_case("rows of five", [[1, 2, 4, 8, 16], [32, 64, 128, 256, 512]]),
        row_case("float16: the sum is beyond 65,504", [[60_000, 60_000]], dtype=torch.float16),
        row_case("float16: 2,049 is no number of it", [[2048, 1]], dtype=torch.float16),
    ]


def wide_sum(x: torch.Tensor) -> torch.Tensor:
    return x.float().sum(1)


def place_below_width(x: torch.Tensor, gap: int) -> torch.Tensor:
    """x with 0 where the place in memory, not the column, is width or more."""
    places = torch.arange(len(x))[:, None] * (x.shape[1] + gap) + torch.arange(x.shape[1])
    return torch.where(places < x.shape[1], x, 0)


def sums_apart(x: torch.Tensor, gap: int) -> torch.Tensor:
    """The sums, stored as far apart as the rows; what falls outside of out is lost."""
    out = torch.full((len(x),), NAN)
    kept = wide_sum(x)[: -(-len(x) // (x.shape[1] + gap))]
    out[:: x.shape[1] + gap] = kept
    return out


ROW_SUM = kernel_check(
    "4.3",
    sum_cases,
    *row_mistakes(wide_sum),
    Mistake(
        "mask-of-places",
        "The mask is for columns: columns < width. Where a row lies in memory says nothing about its end, and row 1 "
        "lies behind `width` places already.",
        when=gives(lambda x, gap: wide_sum(place_below_width(x, gap))),
    ),
    Mistake(
        "mask-by-row-stride",
        "row_stride is how far rows lie apart; how many elements they have is width, and what lies between two rows is "
        "none of theirs.",
        when=gives(lambda x, gap: wide_sum(from_memory(x, gap, lambda row: row * (x.shape[1] + gap),
                                                       min(x.shape[1] + gap, block_of(x)))), outside="load"),
    ),
    Mistake(
        "no-mask",
        "A block has more columns than a row: what follows is summed too. The mask columns < width, with other=0.0, "
        "leaves it out.",
        when=gives(lambda x, gap: wide_sum(from_memory(x, gap, lambda row: row * (x.shape[1] + gap), block_of(x))),
                   outside="load"),
    ),
    Mistake(
        "no-other",
        "Where the mask is off and no `other` is given, a value is anything at all, and goes into the sum: it has to "
        "be 0.",
        when=gives(lambda x, gap: wide_sum(padded(x, NAN)), outside=""),
    ),
    Mistake(
        "mask-one-too-far",
        "A row has columns 0 to width - 1: column `width` is not one of them.",
        when=gives(lambda x, gap: wide_sum(from_memory(x, gap, lambda row: row * (x.shape[1] + gap),
                                                       min(x.shape[1] + 1, block_of(x)))), outside="load"),
    ),
    Mistake(
        "summed-in-half",
        "The sum is made in the dtype of x, and float16 has no such number: make x float32 before it is summed, not "
        "after.",
        when=gives(lambda x, gap: x.sum(1).float()),
    ),
    Mistake(
        "mean",
        "That is the mean: asked for is the sum.",
        when=gives(lambda x, gap: x.float().mean(1)),
    ),
    Mistake(
        "stored-in-one-place",
        "All programs store in the same place, and the last one stays: row i has its sum at place i of out.",
        when=gives(lambda x, gap: torch.cat([wide_sum(x)[-1:], torch.full((len(x) - 1,), NAN)])),
    ),
    Mistake(
        "sums-apart",
        "row_stride is how x lies. out has one number a row, side by side: row i has its sum at place i.",
        when=lambda outcomes: gives(sums_apart, outside="store")(outcomes)
        and any("store" in o.came[1] for o in outcomes),
    ),
    Mistake(
        "block-stored",
        "A row has one sum, and it goes to one place: out_ptr + row. To a block of places it is stored many times, "
        "over those of others.",
        when=strays("store"),
    ),
    NO_KERNEL,
    given=apart,
)


def softmax_cases() -> list[Case]:
    return [
        row_case("one row", [[0, 0]]),
        row_case("two rows", [[0, 1], [2, 0]]),
        row_case("rows that do not fill a block", [[0, 0, 0], [1, 2, 3]]),
        row_case("rows that lie apart", [[0, 1, 2], [3, 3, 0]], gap=2),
        row_case("full blocks that lie apart", [[0, 1], [2, 0]], gap=1),
        row_case("large values", [[100, 101]]),
        row_case("values far below zero", [[-110, -111, -110]]),
        row_case("a value that is masked", [[1, float("-inf"), 1]]),
    ]


def soft(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 1)


def as_out_rows(x: torch.Tensor, gap: int) -> torch.Tensor:
    """Right rows, stored as far apart as those of x; what falls outside of out is lost."""
    out = torch.full((len(x) * (x.shape[1] + gap) + x.shape[1],), NAN)
    for row, values in enumerate(soft(x)):
        begin = row * (x.shape[1] + gap)
        out[begin : begin + x.shape[1]] = values
    return out[: x.numel()].view(x.shape)


def by_powers_of_zero(x: torch.Tensor) -> torch.Tensor:
    """Softmax whose largest value may be the 0 behind the row: all powers are too small to tell."""
    powers = torch.exp(x - padded(x, 0.0).amax(1, keepdim=True))
    return powers / powers.sum(1, keepdim=True)


def rows_over_each_other(x: torch.Tensor) -> torch.Tensor:
    """Right rows, each stored one place behind the one before."""
    out = torch.full((len(x) + x.shape[1],), NAN)
    for row, values in enumerate(soft(x)):
        out[row : row + x.shape[1]] = values
    return torch.cat([out, torch.full((x.numel(),), NAN)])[: x.numel()].view(x.shape)


SOFTMAX = kernel_check(
    "4.4",
    softmax_cases,
    *row_mistakes(soft),
    Mistake(
        "no-maximum",
        "e^100 is beyond float32, and e^-110 is 0: less the row's largest value, the powers are at most 1, and one of "
        "them is 1.",
        when=gives(lambda x, gap: torch.exp(x) / torch.exp(x).sum(1, keepdim=True), outside=""),
    ),
    Mistake(
        "padding-counts",
        "What stands behind the row takes part: e^0 is 1. Minus infinity takes none.",
        when=gives(lambda x, gap: soft(padded(x, 0.0))[:, : x.shape[1]]),
    ),
    Mistake(
        "no-other",
        "Where the mask is off and no `other` is given, a value is anything at all, and goes into both the largest "
        "value and the sum.",
        when=gives(lambda x, gap: soft(padded(x, NAN))[:, : x.shape[1]], outside=""),
    ),
    Mistake(
        "no-mask",
        "A block has more columns than a row: what follows takes part too. The mask columns < width, with minus "
        "infinity for `other`, leaves it out.",
        when=gives(lambda x, gap: soft(from_memory(x, gap, lambda row: row * (x.shape[1] + gap),
                                                   block_of(x)))[:, : x.shape[1]], outside="load"),
    ),
    Mistake(
        "padding-is-the-largest",
        "Zeros behind the row are larger than everything in a row below zero: then all powers come out as 0. Minus "
        "infinity is never the largest.",
        when=gives(lambda x, gap: by_powers_of_zero(x), outside=""),
    ),
    Mistake(
        "base-two",
        "Softmax is of powers of e: tl.exp. Powers of 2 are those only for x times log2(e).",
        when=gives(lambda x, gap: soft(x * math.log(2))),
    ),
    Mistake(
        "not-divided",
        "These are the powers: softmax divides them by their sum.",
        when=gives(lambda x, gap: torch.exp(x - x.amax(1, keepdim=True))),
    ),
    Mistake(
        "another-sum",
        "Powers of x less its largest value, over the sum of powers of x as it is: both have to be the same powers.",
        when=gives(lambda x, gap: torch.exp(x - x.amax(1, keepdim=True)) / torch.exp(x).sum(1, keepdim=True)),
    ),
    Mistake(
        "out-rows-apart",
        "Rows of out lie side by side, `width` apart: row_stride is how x lies.",
        when=gives(as_out_rows),
    ),
    Mistake(
        "out-rows-by-one",
        "A row of out has `width` elements: row 1 begins at place width, not at place 1, over row 0.",
        when=gives(lambda x, gap: rows_over_each_other(x)),
    ),
    Mistake(
        "store-without-mask",
        "Columns that a row does not have are stored too: over the next row, and behind the last one. A store needs a "
        "mask.",
        when=strays("store", among=lambda x, gap: block_of(x) > x.shape[1]),
    ),
    NO_KERNEL,
    given=apart,
)

CHECKS = (ROW_SUM, SOFTMAX)
