"""The checks of 3.1 and 3.2. A reader runs them with: minillm check 3.1"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from minillm.course.checks import Case, Check, Mistake

# 3.1


def length_cases() -> list[Case]:
    def case(about: str, *lengths: int) -> Case:
        return Case(about, {"lengths": list(lengths)})

    return [
        case("two answers of the same length", 4, 4),
        case("a short and a long one", 1, 3),
        case("the long one comes first", 3, 1),
        case("three short ones and a long one", 1, 1, 1, 5),
        case("one answer alone", 7),
        case("the longest stands in the middle", 2, 9, 4),
        case("two are the longest", 8, 2, 8, 3, 5),
    ]


def padding(lengths: Sequence[int]) -> int:
    """Row-steps whose token nobody wants."""
    return len(lengths) * max(lengths) - sum(lengths)


SLOT_EFFICIENCY = Check(
    "3.1",
    length_cases,
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "mean-for-longest",
            "With the mean length in place of the longest every batch comes out as 1: the batch runs to its longest "
            "answer.",
            like=lambda lengths: sum(lengths) / (len(lengths) * statistics.mean(lengths)),
        ),
        Mistake(
            "median-for-longest",
            "The batch does not end when half of the answers have: it runs to its longest answer.",
            like=lambda lengths: sum(lengths) / (len(lengths) * statistics.median(lengths)),
        ),
        Mistake(
            "shortest-for-longest",
            "The batch does not end with its shortest answer: it runs to its longest.",
            like=lambda lengths: sum(lengths) / (len(lengths) * min(lengths)),
        ),
        Mistake(
            "last-for-longest",
            "The lengths come in any order: the longest need not be the last or the first.",
            like=lambda lengths: sum(lengths) / (len(lengths) * lengths[-1]),
        ),
        Mistake(
            "last-for-longest",
            "The lengths come in any order: the longest need not be the last or the first.",
            like=lambda lengths: sum(lengths) / (len(lengths) * lengths[0]),
        ),
        Mistake(
            "wasted-share",
            "That is the share wasted. Asked for is the share that makes a token somebody wants.",
            like=lambda lengths: 1 - sum(lengths) / (len(lengths) * max(lengths)),
        ),
        Mistake(
            "padding-below",
            "Wanted tokens are set against all row-steps, not against the wasted ones: a batch without waste has some "
            "too.",
            like=lambda lengths: sum(lengths) / padding(lengths),
        ),
        Mistake(
            "padding-below",
            "Wasted row-steps over wanted ones say the same in another measure: asked for are wanted ones over all.",
            like=lambda lengths: padding(lengths) / sum(lengths),
        ),
        Mistake(
            "upside-down",
            "A share is at most 1: the wanted tokens stand above, all row-steps below.",
            like=lambda lengths: len(lengths) * max(lengths) / sum(lengths),
        ),
        Mistake(
            "rows-forgotten",
            "In each step every row is computed: how many row-steps are max(lengths) steps of n rows?",
            like=lambda lengths: sum(lengths) / max(lengths),
        ),
        Mistake(
            "steps-forgotten",
            "n counts the rows, which is what one step computes: how many steps does the batch take?",
            like=lambda lengths: sum(lengths) / len(lengths),
        ),
        Mistake(
            "one-answer-counted",
            "Every answer's tokens are wanted, not only those of the longest.",
            like=lambda lengths: max(lengths) / sum(lengths),
        ),
        Mistake(
            "answers-not-tokens",
            "Counted are row-steps. An answer that ends early has been useful in its own steps.",
            like=lambda lengths: lengths.count(max(lengths)) / len(lengths),
        ),
        Mistake(
            "rounded-down",
            "// drops what comes after the point: a share needs /.",
            like=lambda lengths: sum(lengths) // (len(lengths) * max(lengths)),
        ),
        Mistake(
            "in-percent",
            "A share goes from 0 to 1: not in percent.",
            like=lambda lengths: 100 * sum(lengths) / (len(lengths) * max(lengths)),
        ),
    ),
)

# 3.2


def batch_cases() -> list[Case]:
    def case(about: str, arrivals: list[float], free_at: float, max_size: int, timeout: float) -> Case:
        return Case(about, {"arrivals": arrivals, "free_at": free_at, "max_size": max_size, "timeout": timeout})

    return [
        case("one request, the machine is free", [1.0], 0.0, 4, 2.0),
        case("two come before the first one's time is over", [0.0, 1.0], 0.0, 4, 3.0),
        case("the third comes too late", [0.0, 1.0, 5.0], 0.0, 4, 2.0),
        case("full before the time is over", [0.0, 1.0, 2.0, 3.0], 0.0, 2, 10.0),
        case("full with the last that comes", [0.0, 1.0, 2.0], 0.0, 3, 9.0),
        case("one comes at the very moment", [0.0, 2.0, 9.0], 0.0, 3, 2.0),
        case("the machine is busy longer than that", [0.0, 1.0, 2.0, 3.0], 2.5, 8, 1.0),
        case("the machine is free in the middle of the wait", [0.0, 5.0], 2.0, 4, 3.0),
        case("the machine was busy, and more have come than fit", [0.0, 1.0, 2.0, 3.0, 4.0], 3.5, 2, 1.0),
        case("the machine is free, and full comes later", [0.0, 1.0, 6.0], 3.0, 3, 10.0),
        case("three at once, two fit", [0.0, 0.0, 0.0], 0.0, 2, 1.0),
        case("three come at the moment at which two are enough", [0.0, 3.0, 3.0, 3.0], 0.0, 2, 9.0),
        case("no patience at all", [4.0, 5.0], 1.0, 8, 0.0),
        case("each comes just before the one before gives up", [0.0, 1.5, 3.0, 4.5], 0.0, 8, 2.0),
    ]


def batch(arrivals: Sequence[float], free_at: float, max_size: int, timeout: float, *,
          gives_up: Callable[..., float] = lambda arrivals, free_at, timeout: arrivals[0] + timeout,
          full: Callable[..., float] = lambda arrivals, size: arrivals[size - 1] if len(arrivals) >= size else math.inf,
          either: Callable[..., float] = min,
          start: Callable[..., float] = max,
          there: Callable[..., bool] = lambda arrival, moment, start, arrivals: arrival <= start,
          most: Callable[..., int] = min) -> tuple[float, int]:
    """next_batch with a switch for each mistake."""
    moment = either(full(arrivals, max_size), gives_up(arrivals, free_at, timeout))
    when = start(free_at, moment)
    return when, most(sum(there(arrival, moment, when, arrivals) for arrival in arrivals), max_size)


def batches(**switches: Callable) -> Callable[..., tuple[float, int]]:
    return lambda arrivals, free_at, max_size, timeout: batch(arrivals, free_at, max_size, timeout, **switches)


def last_in_a_row(arrivals: Sequence[float], free_at: float, timeout: float) -> float:
    """The wait begins anew with everybody who comes before it is over."""
    until = arrivals[0] + timeout
    for arrival in arrivals:
        if arrival <= until:
            until = arrival + timeout
    return until


NEXT_BATCH = Check(
    "3.2",
    batch_cases,
    names=("starts at", "size"),
    tolerance=1e-9,
    telling=True,
    mistakes=(
        Mistake(
            "timeout-of-the-last",
            "It is the first request whose wait is limited: counted from the last one, it could wait for ever.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: arrivals[-1] + timeout),
        ),
        Mistake(
            "timeout-of-the-last",
            "It is the first request whose wait is limited: if everybody who comes begins it anew, it has no end.",
            like=batches(gives_up=last_in_a_row),
        ),
        Mistake(
            "timeout-of-the-machine",
            "A request has waited since it came, while the machine was busy too: its time is not counted from free_at.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: free_at + timeout),
        ),
        Mistake(
            "timeout-of-the-machine",
            "A request has waited since it came, while the machine was busy too: its time is not counted from free_at.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: max(free_at, arrivals[0]) + timeout),
        ),
        Mistake(
            "timeout-is-no-moment",
            "timeout is how long, not when: the first one's time is over at arrivals[0] + timeout.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: timeout),
        ),
        Mistake(
            "starts-at-once",
            "A free machine alone is no reason to start: the batch is to be full, or the first one's time over.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: arrivals[0]),
        ),
        Mistake(
            "no-timeout",
            "That is static batching: nobody's patience ends. The first waits timeout seconds at most.",
            like=batches(gives_up=lambda arrivals, free_at, timeout: math.inf,
                         full=lambda arrivals, size: arrivals[min(size, len(arrivals)) - 1]),
        ),
        Mistake(
            "machine-not-free",
            "Before free_at nothing can start: the machine still runs the batch before.",
            like=batches(start=lambda free_at, moment: moment),
        ),
        Mistake(
            "machine-not-free",
            "Both are needed, a free machine and a reason to start: the later of the two moments.",
            like=batches(start=min),
        ),
        Mistake(
            "waits-although-full",
            "Once max_size requests are there, waiting on brings nothing: which arrival makes the batch full?",
            like=batches(full=lambda arrivals, size: math.inf),
        ),
        Mistake(
            "waits-for-both",
            "One reason is enough: full, or the time over. The earlier of the two moments.",
            like=batches(full=lambda arrivals, size: arrivals[min(size, len(arrivals)) - 1], either=max),
        ),
        Mistake(
            "waits-for-both",
            "One reason is enough: full, or the time over. The earlier of the two moments.",
            like=batches(full=lambda arrivals, size: arrivals[size - 1] if len(arrivals) >= size else 0.0, either=max),
        ),
        Mistake(
            "full-one-too-late",
            "The batch is full with request number max_size; counted from 0 that is arrivals[max_size - 1].",
            like=batches(full=lambda arrivals, size: arrivals[size] if len(arrivals) > size else math.inf),
        ),
        Mistake(
            "may-never-be-full",
            "If fewer than max_size are to come, the batch is never full: there is no arrivals[max_size - 1] then.",
            like=batches(full=lambda arrivals, size: arrivals[size - 1]),
        ),
        Mistake(
            "only-the-first",
            "Who came while the first one waited is taken along: count who is there when the batch starts.",
            like=batches(there=lambda arrival, moment, start, arrivals: arrival <= arrivals[0]),
        ),
        Mistake(
            "who-came-meanwhile",
            "Whoever came until the machine was free is there too: count at the start, not when there was reason to.",
            like=batches(there=lambda arrival, moment, start, arrivals: arrival <= moment),
        ),
        Mistake(
            "who-comes-now",
            "Who comes at the very moment of the start is there: <= and not <.",
            like=batches(there=lambda arrival, moment, start, arrivals: arrival < start),
        ),
        Mistake(
            "more-than-fit",
            "The batch takes max_size at most; the others wait for the next.",
            like=batches(most=lambda there, size: there),
        ),
        Mistake(
            "not-there-yet",
            "Requests that have yet to come are in arrivals too: a batch takes only those that are there.",
            like=batches(there=lambda arrival, moment, start, arrivals: True),
        ),
        Mistake(
            "not-there-yet",
            "max_size is the most: a batch takes only those that are there.",
            like=batches(most=lambda there, size: size),
        ),
        Mistake(
            "a-wait-not-a-moment",
            "Asked for is the moment of the start, in the seconds of arrivals: not how long it is until then.",
            like=lambda arrivals, free_at, max_size, timeout: (
                (found := batch(arrivals, free_at, max_size, timeout))[0] - arrivals[0], found[1]),
        ),
        Mistake(
            "values-swapped",
            "The moment comes first, then the number.",
            like=lambda arrivals, free_at, max_size, timeout: batch(arrivals, free_at, max_size, timeout)[::-1],
        ),
    ),
)

CHECKS = (SLOT_EFFICIENCY, NEXT_BATCH)
