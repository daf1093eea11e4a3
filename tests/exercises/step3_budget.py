"""The check of 3.3. A reader runs it with: minillm check 3.3"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from minillm.course.checks import Case, Check, Mistake


def budget_cases() -> list[Case]:
    def case(about: str, uncomputed: list[int], budget: int, chunk_size: int | None = None) -> Case:
        return Case(about, {"uncomputed": uncomputed, "budget": budget, "chunk_size": chunk_size})

    return [
        case("two that decode", [1, 1], 8),
        case("one prompt, shorter than the budget", [5], 8),
        case("one prompt, longer than the budget", [9], 4),
        case("a prompt stands before one that decodes", [9, 1], 4),
        case("two prompts, the first is short", [3, 9], 8),
        case("two long prompts", [9, 9], 8),
        case("two prompts, the second is short", [9, 3], 8),
        case("one prompt in chunks of 4", [9], 8, 4),
        case("two prompts in chunks of 4", [9, 9], 12, 4),
        case("chunks of 4, a short prompt before two long ones", [2, 9, 9], 12, 4),
        case("chunks of 4, the budget ends within the second", [9, 9], 6, 4),
        case("chunks of 4, and one that decodes", [9, 1], 8, 4),
        case("chunks of 2, three decode", [1, 9, 1, 1], 16, 2),
        case("decodes and prompts in turn", [1, 9, 1, 4], 10),
        case("those that decode take all of it", [1, 9, 1, 1], 3),
        case("nobody runs", [], 8),
        case("a short prompt between two long ones, in chunks", [9, 2, 7], 12, 5),
        case("the smallest chunks", [5, 1, 3], 8, 1),
    ]


def share(uncomputed: Sequence[int], budget: int, chunk_size: int | None, *,
          first: Callable[[int], bool] = lambda tokens: tokens == 1,
          left: Callable[..., int] = lambda budget, decodes, chunk: budget - decodes,
          most: Callable[..., int] = lambda left, chunk, decodes: min(left, chunk),
          spent: Callable[[int], int] = lambda count: count,
          line: Callable[[Sequence[int]], Iterable[int]] = lambda uncomputed: range(len(uncomputed)),
          whole: bool = False) -> list[int]:
    """split_budget with a switch for each mistake. `first`: who is served before the others."""
    counts = [1 if first(tokens) else 0 for tokens in uncomputed]
    chunk, decodes = chunk_size or budget + 1, sum(counts)
    rest = left(budget, decodes, chunk)
    for place in line(uncomputed):
        tokens = uncomputed[place]
        if not first(tokens):
            count = min(tokens, most(rest, chunk, decodes))
            counts[place] = 0 if whole and count < min(tokens, chunk) else count
            rest -= spent(counts[place])
    return counts


def shares(**switches: Callable) -> Callable[..., list[int]]:
    return lambda uncomputed, budget, chunk_size: share(uncomputed, budget, chunk_size, **switches)


def evenly(uncomputed: Sequence[int], budget: int, chunk_size: int | None) -> list[int]:
    """The same to each prompt; what one does not need is lost."""
    decodes = uncomputed.count(1)
    each = (budget - decodes) // max(1, len(uncomputed) - decodes)
    return [min(tokens, each, chunk_size or tokens) if tokens > 1 else 1 for tokens in uncomputed]


def in_turn(uncomputed: Sequence[int], budget: int, chunk_size: int | None) -> list[int]:
    """A token to each prompt in turn, as long as there are some."""
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    wanted = [min(tokens, chunk_size or tokens) for tokens in uncomputed]
    while sum(counts) < budget and counts != wanted:
        for place in range(len(counts)):
            if counts[place] < wanted[place] and sum(counts) < budget:
                counts[place] += 1
    return counts


def one_prompt(uncomputed: Sequence[int], budget: int, chunk_size: int | None) -> list[int]:
    """The first prompt gets what is left, the others nothing."""
    counts = share(uncomputed, budget, chunk_size)
    prompts = [place for place, tokens in enumerate(uncomputed) if tokens > 1]
    return [0 if place in prompts[1:] else count for place, count in enumerate(counts)]


def stops_when_cut(uncomputed: Sequence[int], budget: int, chunk_size: int | None) -> list[int]:
    """Nobody gets anything behind a prompt that did not get all of its tokens."""
    counts = share(uncomputed, budget, chunk_size)
    cut = next((i for i, (tokens, count) in enumerate(zip(uncomputed, counts)) if tokens > max(1, count)), len(counts))
    return [0 if place > cut and uncomputed[place] > 1 else count for place, count in enumerate(counts)]


def needs_a_number(uncomputed: Sequence[int], budget: int, chunk_size: int | None) -> list[int]:
    if chunk_size is None and any(tokens > 1 for tokens in uncomputed):
        return min(1, chunk_size)
    return share(uncomputed, budget, chunk_size)


IN_LINE = "Whoever decodes must not wait for a prompt before it: hand out the decodes' tokens first."

SPLIT_BUDGET = Check(
    "3.3",
    budget_cases,
    telling=True,
    mistakes=(
        Mistake("decode-stalls", IN_LINE, like=shares(first=lambda tokens: False)),
        Mistake("decode-stalls", IN_LINE, like=shares(
            first=lambda tokens: False, most=lambda left, chunk, decodes: max(0, min(left, chunk)))),
        Mistake("decode-stalls", IN_LINE, like=shares(
            first=lambda tokens: False, line=lambda uncomputed: sorted(range(len(uncomputed)),
                                                                      key=lambda place: uncomputed[place] == 1))),
        Mistake(
            "budget-exceeded",
            "The tokens of those that decode are part of the budget: take them off before prompts get any.",
            like=shares(left=lambda budget, decodes, chunk: budget),
        ),
        Mistake(
            "budget-exceeded",
            "The budget is one for all: what a prompt got is gone for the next.",
            like=shares(spent=lambda count: 0),
        ),
        Mistake(
            "budget-exceeded",
            "No more than `budget` tokens in all: a prompt gets what is left of it at most.",
            like=shares(most=lambda left, chunk, decodes: chunk),
        ),
        Mistake(
            "budget-exceeded",
            "No more than `budget` tokens in all: a prompt gets what is left of it at most.",
            like=lambda uncomputed, budget, chunk_size: [min(tokens, chunk_size or tokens) for tokens in uncomputed],
        ),
        Mistake(
            "chunk-ignored",
            "A prompt gets chunk_size tokens at most, however much is left.",
            like=shares(most=lambda left, chunk, decodes: left),
        ),
        Mistake(
            "chunk-for-all",
            "chunk_size limits each prompt by itself: the next one gets a chunk too, while the budget lasts.",
            like=shares(left=lambda budget, decodes, chunk: min(budget - decodes, chunk)),
        ),
        Mistake(
            "chunk-for-all",
            "chunk_size limits each prompt, not the step: the budget does that.",
            like=shares(left=lambda budget, decodes, chunk: max(0, min(budget, chunk) - decodes)),
        ),
        Mistake(
            "decodes-in-the-chunk",
            "Those that decode are paid out of the budget; a prompt's chunk is not made smaller by them.",
            like=shares(most=lambda left, chunk, decodes: max(0, min(left, chunk - decodes))),
        ),
        Mistake(
            "shared-evenly",
            "Prompts are served in order: the first gets all it can use, so that it is done soon.",
            like=in_turn,
        ),
        Mistake(
            "left-over-lost",
            "What a short prompt does not need goes on to the next; here it is lost.",
            like=evenly,
        ),
        Mistake(
            "one-prompt-only",
            "Tokens are left after the first prompt: they go to the next one.",
            like=one_prompt,
        ),
        Mistake(
            "one-prompt-only",
            "A prompt cut at chunk_size has had its share: what is left of the budget goes to the next one.",
            like=stops_when_cut,
        ),
        Mistake(
            "all-or-nothing",
            "A prompt need not fit as a whole: it gets what is left, and goes on in the next step.",
            like=shares(whole=True),
        ),
        Mistake(
            "all-or-nothing",
            "A prompt need not fit as a whole: it gets what is left, and goes on in the next step.",
            like=lambda uncomputed, budget, chunk_size: share(uncomputed, budget, None, whole=True),
        ),
        Mistake(
            "shortest-first",
            "Prompts are served in the order of the line. Whether the short go first was decided there (policy).",
            like=shares(line=lambda uncomputed: sorted(range(len(uncomputed)), key=lambda place: uncomputed[place])),
        ),
        Mistake(
            "zeros-left-out",
            "A count for each, in their order: 0 for one that gets nothing.",
            like=lambda uncomputed, budget, chunk_size: [n for n in share(uncomputed, budget, chunk_size) if n],
        ),
        Mistake(
            "what-remains",
            "Asked for is how many tokens each gets now, not how many it is left with.",
            like=lambda uncomputed, budget, chunk_size: [
                tokens - count for tokens, count in zip(uncomputed, share(uncomputed, budget, chunk_size))],
        ),
        Mistake(
            "none-is-no-number",
            "chunk_size None means no limit of that kind: min() cannot compare it with a number.",
            like=needs_a_number,
        ),
    ),
)

CHECKS = (SPLIT_BUDGET,)
