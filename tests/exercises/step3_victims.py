"""The checks of 3.5 and 3.6. A reader runs them with: minillm check 3.5"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minillm.course import hunts
from minillm.course.checks import Case, Check, Mistake, Outcome
from minillm.serving import scheduler

# 3.5


def victim_cases() -> list[Case]:
    def case(about: str, *running: tuple[str, tuple[int, int, int], int, int]) -> Case:
        """running: (name, order, tokens, preemptions) of each, as they stand in the list."""
        shown = "; ".join(f"{name} with order {order}, {tokens} tokens" + (f", preempted {times}×" if times else "")
                          for name, order, tokens, times in running)
        return Case(about, {"running": list(running)}, f"running: {shown}")

    return [
        case("one alone", ("a", (0, 0, 0), 5, 0)),
        case("two of a length", ("a", (0, 0, 0), 5, 0), ("b", (0, 1, 0), 5, 0)),
        case("the first in line is the longest", ("a", (0, 0, 0), 9, 0), ("b", (0, 1, 0), 4, 0)),
        case("the first in line is the shortest", ("a", (0, 0, 0), 3, 0), ("b", (0, 1, 0), 8, 0)),
        case("one was sent back, and stands last in the list since it returned",
             ("b", (0, 1, 0), 6, 0), ("a", (0, 0, 0), 7, 1)),
        case("the last in line has been sent back before",
             ("a", (0, 0, 0), 6, 0), ("b", (0, 1, 0), 7, 0), ("c", (0, 2, 0), 5, 1)),
        case("the urgent one came later (policy 'priority')", ("b", (1, 0, 0), 6, 0), ("a", (0, 1, 0), 6, 0)),
        case("two answers of one request", ("a", (0, 0, 0), 5, 0), ("a2", (0, 0, 1), 5, 0)),
        case("answers of two requests", ("b2", (0, 1, 1), 4, 0), ("a", (0, 0, 0), 5, 0), ("b", (0, 1, 0), 6, 0)),
        case("priorities before arrivals",
             ("a", (0, 3, 0), 4, 0), ("c", (2, 1, 0), 5, 0), ("b", (2, 0, 0), 9, 1), ("d", (1, 2, 0), 6, 0)),
    ]


def chosen(function: Callable[..., Any], running: list[tuple[str, tuple[int, int, int], int, int]]) -> Any:
    """The name of the one chosen; ids are given by arrival, as the engine does, answers after their first."""
    made = {name: sequence(name, *of) for name, *of in running}
    handed = list(made.values())
    came = function(handed)
    if handed != list(made.values()):
        return "the list is changed"
    return next((name for name, seq in made.items() if seq is came), came)


class Named(scheduler.Sequence):
    """Printed, also in the message of an error, by the name that the case gives it."""

    name = ""

    def __repr__(self) -> str:
        return f"sequence {self.name}"


def sequence(name: str, order: tuple[int, int, int], tokens: int, preemptions: int) -> scheduler.Sequence:
    seq = Named(10 * order[1] + order[2] + 1, [0] * 3, 20, priority=order[0])
    seq.token_ids += [0] * (tokens - 3)
    seq.num_computed_tokens, seq.order, seq.state = tokens - 1, order, "running"
    seq.num_preemptions, seq.name = preemptions, name
    return seq


CHOOSE_VICTIM = Check(
    "3.5",
    victim_cases,
    call=chosen,
    telling=True,
    mistakes=(
        Mistake(
            "the-first",
            "Whoever is first in line must stay: if it can be sent back, nobody is sure ever to end.",
            like=lambda running: min(running, key=lambda seq: seq.order),
        ),
        Mistake(
            "the-longest",
            "It would free the most, and has the most to compute again. And the one with most tokens is often the "
            "first, which must stay.",
            like=lambda running: max(running, key=lambda seq: len(seq.token_ids)),
        ),
        Mistake(
            "the-longest",
            "It would free the most, and has the most to compute again. Length does not decide: the place in the line "
            "does, alone.",
            like=lambda running: max(running, key=lambda seq: (len(seq.token_ids), seq.order)),
        ),
        Mistake(
            "the-shortest",
            "It would be the cheapest to compute again, but it may be the first in line, and that one must stay.",
            like=lambda running: min(running, key=lambda seq: len(seq.token_ids)),
        ),
        Mistake(
            "the-shortest",
            "It would be the cheapest to compute again, but it may be the first in line, and that one must stay.",
            like=lambda running: min(reversed(running), key=lambda seq: len(seq.token_ids)),
        ),
        Mistake(
            "last-in-the-list",
            "Who was sent back and returned has kept its place in the line: seq.order tells it, not where it stands.",
            like=lambda running: running[-1],
        ),
        Mistake(
            "first-in-the-list",
            "Where a sequence stands in the list says nothing about its place in the line: seq.order does.",
            like=lambda running: running[0],
        ),
        Mistake(
            "the-newest-id",
            "The newest id is the latest arrival. With priorities that may be the first in line: compare seq.order.",
            like=lambda running: max(running, key=lambda seq: seq.seq_id),
        ),
        Mistake(
            "the-newest-id",
            "The latest arrival may be the first in line, with priorities: compare the whole of seq.order.",
            like=lambda running: max(running, key=lambda seq: seq.order[1:]),
        ),
        Mistake(
            "priority-alone",
            "Among those of one priority their arrival decides: compare the whole of seq.order.",
            like=lambda running: max(running, key=lambda seq: seq.order[0]),
        ),
        Mistake(
            "spares-who-was-sent-back",
            "That is kind, but then others are sent back before their turn: the place in the line alone decides.",
            like=lambda running: min(running, key=lambda seq: (seq.num_preemptions, [-part for part in seq.order])),
        ),
        Mistake(
            "picks-on-who-was-sent-back",
            "Once sent back, always sent back: it has kept its place, which alone decides.",
            like=lambda running: max(running, key=lambda seq: (seq.num_preemptions, seq.order)),
        ),
        Mistake(
            "takes-it-out",
            "choose_victim only looks: _preempt takes the victim out of the list.",
            when=lambda outcomes: all(o.came == "the list is changed" for o in outcomes),
        ),
        Mistake(
            "not-a-sequence",
            "Return the sequence itself, not its id, its order or its place in the list.",
            when=lambda outcomes: all(o.error is None and o.came is not None and not isinstance(o.came, str)
                                      for o in outcomes),
        ),
    ),
)

# 3.6

FEWEST, SIZE = "as few as can be", hunts.BLOCK
Crowd = tuple[int, list[int], list[list[int]]]


def hits(left: list[int], prompt: list[int]) -> int:
    """Blocks of `left` that a prompt begins with."""
    alike = next((i for i, (one, other) in enumerate(zip(left, prompt)) if one != other), min(len(left), len(prompt)))
    return min(alike, len(prompt) - 1) // SIZE


def blocks_for(tokens: list[int]) -> int:
    return -(-len(tokens) // SIZE)


class NoCrowd(ValueError):
    """What the reader's function returns is not (num_blocks, left, arriving)."""


def read(crowd: Any) -> Crowd:
    """Raises NoCrowd for what is not (num_blocks, left, arriving)."""
    def tokens(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and all(type(token) is int for token in value)

    if not isinstance(crowd, (list, tuple)) or len(crowd) != 3:
        raise NoCrowd(f"your function returns {crowd!r}: expected (num_blocks, left, arriving)"[:150])
    num_blocks, left, arriving = crowd
    if type(num_blocks) is not int or not tokens(left):
        raise NoCrowd(f"num_blocks and left are {num_blocks!r} and {left!r}: expected a number, token ids"[:150])
    if not isinstance(arriving, (list, tuple)) or not all(map(tokens, arriving)):
        raise NoCrowd(f"arriving is {arriving!r}: expected a list of prompts, each a list of token ids"[:150])
    return num_blocks, list(left), list(map(list, arriving))


def crowds(function: Callable[[], Any]) -> tuple[str, str] | None:
    """In words, so that ours is not shown: whether the bug shows, and whether the tokens are the fewest."""
    crowd = function()
    if crowd is None:
        return None
    num_blocks, left, arriving = read(crowd)
    if not all(arriving):
        return "no, a prompt has no token", "?"
    if max(map(blocks_for, [left, *arriving])) > num_blocks:
        return "no, one of them would not fit alone", "?"
    let_in = [arriving[place] for place in hunts.let_in_with_a_bug(num_blocks, left, arriving)]
    shared = [hits(left, prompt) for prompt in let_in]
    if max(shared, default=0) + sum(map(blocks_for, let_in)) - sum(shared) > num_blocks:
        return "yes", FEWEST if len(left) + sum(map(len, arriving)) == 6 else "fewer will do"
    if any(hits(left, prompt) for prompt in arriving) and len(let_in) < len(arriving):
        return "no, not all are let in, and those that are fit", "?"
    if any(shared):
        return "no, one begins with what was left, and there are blocks for all", "?"
    return "no, nobody begins with a block that was left", "?"


def came_is(part: int, text: str) -> Callable[[Sequence[Outcome]], bool]:
    return lambda outcomes: outcomes[0].came[part] == text


HUNT = Check(
    "3.6",
    lambda: [Case("your pool and your prompts, in blocks of two tokens", {}, "what your function returns")],
    call=crowds,
    names=("the bug shows:", "tokens:"),
    mistakes=(
        Mistake(
            "no-crowd",
            "Three things: how many blocks there are, the tokens left as one list, and the prompts as a list of lists, "
            "one for each request that comes.",
            when=lambda outcomes: isinstance(outcomes[0].error, NoCrowd),
        ),
        Mistake(
            "no-token",
            "Each prompt has a token at least: there would be nothing to compute.",
            when=came_is(0, "no, a prompt has no token"),
        ),
        Mistake(
            "never-fits",
            "A request that does not fit into the whole pool is refused when it comes. The bug needs several that do "
            "not fit together.",
            when=came_is(0, "no, one of them would not fit alone"),
        ),
        Mistake(
            "no-hit",
            "The count is right for all who find nothing. Somebody has to begin with a full block of what was left, "
            "and the last token is always computed: three tokens at least.",
            when=came_is(0, "no, nobody begins with a block that was left"),
        ),
        Mistake(
            "kept-out",
            "Those let in do fit. The pool is so small, or the prompts so long, that the wrong count keeps the others "
            "out as well.",
            when=came_is(0, "no, not all are let in, and those that are fit"),
        ),
        Mistake(
            "room-for-all",
            "Somebody takes an idle block, but all fit all the same: make the pool smaller, or let one more come.",
            when=came_is(0, "no, one begins with what was left, and there are blocks for all"),
        ),
        Mistake(
            "too-many-tokens",
            "The bug shows. Fewer tokens show it too: which of them is neither in the block left nor needs another?",
            when=came_is(1, "fewer will do"),
        ),
    ),
)

CHECKS = (CHOOSE_VICTIM, HUNT)
