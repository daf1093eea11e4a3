"""The checks of 4.1 and 4.2, the first of the Triton puzzles. A reader runs them with: minillm check 4.1"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from minillm.course.checks import Case, Mistake
from minillm.course.triton_checks import NAN, NO_KERNEL, all_inside, all_nan, gives, kernel_check, strays


def at_places(values: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """Only these elements of a vector; the others were never stored."""
    out = all_nan(values)
    out[list(places)] = values[list(places)]
    return out


# 4.1


def add_cases() -> list[Case]:
    def case(about: str, count: int, block: int, dtype: torch.dtype = torch.float32) -> Case:
        x = torch.arange(1, count + 1, dtype=dtype)
        return Case(about, {"x": x, "y": 10 * x, "block": block})

    return [
        case("one program", 2, 2),
        case("two programs", 4, 2),
        case("four programs", 8, 2),
        case("two programs of four", 8, 4),
        case("blocks of one", 3, 1),
        case("float16", 4, 2, torch.float16),
    ]


ADD = kernel_check(
    "4.1",
    add_cases,
    Mistake(
        "nothing-stored",
        "Nothing arrives in out. Is the sum stored, and is it stored to out_ptr?",
        when=lambda outcomes: gives(lambda x, y, block: all_nan(x), outside="")(outcomes) and all_inside(outcomes),
    ),
    Mistake(
        "first-block-only",
        "Every program does the elements of the first block: the program's number, tl.program_id(0), has to come into "
        "it.",
        when=gives(lambda x, y, block: at_places(x + y, range(block))),
    ),
    Mistake(
        "blocks-overlap",
        "Program 1 begins BLOCK elements after program 0, not one: its number counts blocks.",
        when=gives(lambda x, y, block: at_places(x + y, range(len(x) // block + block - 1))),
    ),
    Mistake(
        "one-element-a-program",
        "A program has a whole block to do: tl.arange(0, BLOCK) gives its places, all at once.",
        when=gives(lambda x, y, block: at_places(x + y, range(len(x) // block))),
    ),
    Mistake(
        "one-element-a-program",
        "A program has a whole block to do, not only its first element: tl.arange(0, BLOCK) gives all of its places.",
        when=gives(lambda x, y, block: at_places(x + y, range(0, len(x), block))),
    ),
    Mistake(
        "number-times-place",
        "The program's number moves all places of a block by the same amount: it is added, not multiplied with them.",
        when=gives(lambda x, y, block: at_places(x + y, [i * k for i in range(len(x) // block) for k in range(block)])),
    ),
    Mistake(
        "one-tensor-not-moved",
        "Both tensors are read at the same places: here one of them is always read in its first block.",
        when=gives(lambda x, y, block: x + y[:block].repeat(len(x) // block)),
    ),
    Mistake(
        "one-tensor-not-moved",
        "Both tensors are read at the same places: here one of them is always read in its first block.",
        when=gives(lambda x, y, block: x[:block].repeat(len(x) // block) + y),
    ),
    Mistake(
        "all-stored-in-the-first-block",
        "Every program stores in the first block, over what the one before has stored: out moves along too.",
        when=gives(lambda x, y, block: torch.cat([(x + y)[-block:], all_nan(x)])[: len(x)]),
    ),
    Mistake(
        "second-block-first",
        "Programs are counted from 0, and so are elements: program 0 begins at place 0.",
        when=gives(lambda x, y, block: at_places(x + y, range(block, len(x))), outside="store"),
    ),
    Mistake(
        "one-tensor-twice",
        "One of the two is added to itself: each is loaded by its own pointer.",
        when=gives(lambda x, y, block: x + x),
    ),
    Mistake(
        "one-tensor-twice",
        "One of the two is added to itself: each is loaded by its own pointer.",
        when=gives(lambda x, y, block: y + y),
    ),
    NO_KERNEL,
)

# 4.2


def gaps_cases() -> list[Case]:
    def case(about: str, times: list[float], block: int, dtype: torch.dtype = torch.float32) -> Case:
        return Case(about, {"times": torch.tensor(times, dtype=dtype), "block": block})

    return [
        case("one full block", [2, 3, 5, 9], 4),
        case("two full blocks", [2, 3, 5, 9], 2),
        case("a block that is half full", [2, 3], 4),
        case("the second block half full", [2, 3, 5, 9, 10, 17], 4),
        case("the second block with one element", [2, 3, 5, 9, 10], 4),
        case("one element", [4], 2),
        case("float16", [1, 4, 6], 2, torch.float16),
    ]


def short(times: torch.Tensor, block: int) -> int:
    """Places of the last block that do not exist."""
    return -len(times) % block


def gap(times: torch.Tensor) -> torch.Tensor:
    return torch.diff(times, prepend=times.new_zeros(1))


def first_is_nan(times: torch.Tensor, block: int) -> torch.Tensor:
    return torch.cat([times.new_full((1,), NAN), gap(times)[1:]])


def only(times: torch.Tensor, kept: Callable[[torch.Tensor], torch.Tensor], value: float = NAN) -> torch.Tensor:
    """The gaps at the places that are kept, `value` at the others."""
    return torch.where(kept(torch.arange(len(times))), gap(times), value).to(times.dtype)


def masked_by_place_in_block(times: torch.Tensor, block: int) -> int:
    """Accesses outside if the mask is tl.arange(0, BLOCK) < count: now, before and out, of each block."""
    places = torch.arange(len(times) + short(times, block))
    chosen = places[places % block < len(times)]
    return 2 * int((chosen >= len(times)).sum()) + int((chosen > len(times)).sum())


GAPS = kernel_check(
    "4.2",
    gaps_cases,
    Mistake(
        "left-of-the-first",
        "Before the first element there is nothing: its load has to be masked off too, with other=0.0.",
        when=lambda outcomes: gives(first_is_nan, outside="load")(outcomes) and not all_inside(outcomes),
    ),
    Mistake(
        "no-other",
        "The first element is anything at all. Is it stored? And where a mask is off and no `other` is given, what is "
        "loaded is anything: other=0.0 for its neighbour.",
        when=gives(first_is_nan, outside=""),
    ),
    Mistake(
        "first-block-only",
        "Every program does the elements of the first block: the program's number, tl.program_id(0), has to come into "
        "it.",
        when=gives(lambda times, block: only(times, lambda at: at < block)),
    ),
    Mistake(
        "first-element-lost",
        "Element 0 is there: only what stands before it is not. The two loads have masks of their own.",
        when=gives(lambda times, block: only(times, lambda at: at > 0, 0.0)),
    ),
    Mistake(
        "last-element-lost",
        "There are `count` elements, 0 to count - 1: the last one is below count too.",
        when=gives(lambda times, block: only(times, lambda at: at < len(times) - 1), outside=""),
    ),
    Mistake(
        "second-without-neighbour",
        "Only place 0 has no neighbour; that of place 1 is place 0.",
        when=gives(lambda times, block: torch.where(torch.arange(len(times)) == 1, times, gap(times))),
    ),
    Mistake(
        "nothing-before",
        "No neighbour is subtracted: its mask is off everywhere. & binds more tightly than < and >, so each comparison "
        "stands in parentheses.",
        when=gives(lambda times, block: times),
    ),
    Mistake(
        "a-block-before",
        "The neighbour is one place before, not BLOCK places: the block before overlaps with this one.",
        when=gives(lambda times, block: torch.cat([times[:1], times[1:] - torch.cat(
            [all_nan(times)[: block - 1], times])[: len(times) - 1]])),
    ),
    Mistake(
        "each-block-from-zero",
        "Only the very first element has no neighbour: that of another block is the last one of the block before.",
        when=gives(lambda times, block: torch.where(torch.arange(len(times)) % block == 0, times, gap(times))),
    ),
    Mistake(
        "the-next-one",
        "The neighbour is the one before: places less one.",
        when=gives(lambda times, block: times - torch.cat([times[1:], times.new_zeros(1)])),
    ),
    Mistake(
        "turned-round",
        "Later less earlier: these have the wrong sign.",
        when=gives(lambda times, block: -gap(times)),
    ),
    Mistake(
        "mask-one-too-far",
        "There are `count` elements, 0 to count - 1: place `count` is not one of them.",
        when=strays("load and store", lambda times, block: 2 * min(1, short(times, block))),
    ),
    Mistake(
        "mask-in-the-block",
        "The mask asks where an element is in its block. Which of all elements it is, program number included, has to "
        "be below count.",
        when=strays("load and store", masked_by_place_in_block),
    ),
    Mistake(
        "no-mask",
        "The last block may have more places than there are elements. A mask keeps loads and stores from going there.",
        when=strays("load and store"),
    ),
    Mistake(
        "store-without-mask",
        "What was masked off when it was loaded is still stored, over memory that is somebody else's: a store needs a "
        "mask too.",
        when=strays("store"),
    ),
    Mistake(
        "load-without-mask",
        "What is loaded outside is not stored, so the result is right. But memory that is not there may end the "
        "program: every load needs its mask.",
        when=strays("load"),
    ),
    NO_KERNEL,
)

CHECKS = (ADD, GAPS)
