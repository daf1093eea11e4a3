"""Made-up work with the shape of real work: when requests come, how long they are, what they share.

Seeded: the same call gives the same workload, on every machine. A workload is a list of `WorkItem`, and an item's name
is its place in it. Token ids are made from the place and a seed as well, so that an engine and a simulation of it see
the same prompts.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from minillm.measure.arguments import check_number, check_seconds, check_whole

MOST_WAIT = 1e7  # seconds, on average: chance makes it longer, and still less than `arguments.MOST_SECONDS`
SPECIAL = 32  # token ids below this are left alone: the first few of a vocabulary mark beginnings and ends


@dataclass(frozen=True)
class WorkItem:
    """One request of a workload.

    arrival        seconds from the start; of a follow-up: from the end of the item it follows (time to think)
    prompt_tokens  tokens of its own in the prompt, at least 1
    output_tokens  tokens to generate, at least 1
    prefix         items with the same number begin with the same `prefix_tokens` ids, in front of their own
    follows        the earlier item (its place) whose prompt and output come first in this one's prompt: a conversation
    priority       the lower, the sooner, for a scheduler that asks

    Raises ValueError for a value that is none of these, or a follow-up with a prefix (it has its conversation's).
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix: int | None = None
    prefix_tokens: int = 0
    follows: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        check_seconds("arrival", self.arrival)
        object.__setattr__(self, "arrival", float(self.arrival))
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("prefix_tokens", 0), ("priority", None)):
            check_whole(name, getattr(self, name), least)
        for name in ("prefix", "follows"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 0)
        if (self.prefix is None) != (self.prefix_tokens == 0):
            wanted = "0, there is no prefix" if self.prefix is None else "at least 1, there is a prefix"
            raise ValueError(f"prefix_tokens is {self.prefix_tokens}: expected {wanted}")
        if self.follows is not None and self.prefix is not None:
            raise ValueError(f"prefix is {self.prefix}: expected none, an item that follows another has its prompt")

    def tokens_after(self, history: int) -> int:
        """Tokens of its whole prompt, after so many of its conversation: known before there are any ids."""
        return history + self.prefix_tokens + self.prompt_tokens


@dataclass(frozen=True)
class Lengths:
    """How lengths in tokens are spread: log-normal with this median and σ of the logarithm, cut at `maximum`.

    σ = 0 is a fixed length. Raises ValueError as `lognormal_lengths` does, and for a maximum below the median.
    """

    median: float
    sigma: float = 0.0
    maximum: int = sys.maxsize

    def __post_init__(self) -> None:
        self.draw(1)
        if self.maximum < self.median:
            raise ValueError(f"maximum is {self.maximum}: expected at least the median, {self.median}")

    def draw(self, count: int, seed: int = 0) -> list[int]:
        """`count` lengths in tokens."""
        return lognormal_lengths(count, self.median, self.sigma, self.maximum, seed)


def lognormal_lengths(count: int, median: float, sigma: float, maximum: int, seed: int = 0) -> list[int]:
    """`count` lengths in tokens, log-normal (median, σ of the logarithm), rounded, at least 1 and at most `maximum`.

    Prompts and answers in the field have such tails: most are short, a few are very long. Raises ValueError for a
    count, median or maximum that is no number from 1 on, or a σ outside 0 to 100.
    """
    check_whole("count", count, 1)
    check_number("median", median, lambda tokens: 1 <= tokens <= sys.maxsize, f"tokens, 1 to {sys.maxsize}")
    check_number("sigma", sigma, lambda spread: 0 <= spread <= 100, "0 to 100")
    check_whole("maximum", maximum, 1, sys.maxsize)
    rng = random.Random(seed)
    logs = (rng.normalvariate(math.log(median), sigma) for _ in range(count))
    # cut before exp, which overflows where σ is large
    return [maximum if log > math.log(maximum) + 1 else min(maximum, max(1, round(math.exp(log)))) for log in logs]


def at_once(count: int) -> list[float]:
    """`count` arrivals at 0 seconds: a batch job, or the worst burst there is."""
    check_whole("count", count, 1)
    return [0.0] * count


def poisson_arrivals(count: int, rate: float, seed: int = 0) -> list[float]:
    """`count` arrival times in seconds, ascending, `rate` a second: many users who know nothing of each other.

    The gaps are exponential, and the first one comes before the first arrival. Raises ValueError as `gamma_arrivals`.
    """
    return gamma_arrivals(count, rate, 1.0, seed)


def gamma_arrivals(count: int, rate: float, cv: float, seed: int = 0) -> list[float]:
    """`count` arrival times in seconds, ascending, `rate` a second, with gamma gaps.

    `cv`: standard deviation of a gap over its mean. 1 is Poisson, more comes in bursts, 0 is a clock. A gamma
    distribution of shape 1 / cv² and scale cv² / rate has mean 1 / rate and this cv. Raises ValueError for a count
    below 1, a rate that is not positive or too low to see the end of, or a cv outside 0 to 100.
    """
    check_whole("count", count, 1)
    check_number("rate", rate, lambda r: r > 0 and count / r <= MOST_WAIT,
                 "requests a second, more than 0, so that all come within 1e7 seconds")
    check_number("cv", cv, lambda c: 0 <= c <= 100, "a number from 0 to 100")
    rng, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += rng.gammavariate(1 / cv**2, cv**2 / rate) if cv > 1e-6 else 1 / rate
        times.append(now)
    return times


def make_workload(
    count: int,
    *,
    rate: float | None = None,
    cv: float = 1.0,
    prompt: Lengths = Lengths(128, 1.0, 2048),
    output: Lengths = Lengths(32, 1.0, 256),
    prefixes: int = 0,
    prefix_tokens: int = 0,
    turns: int = 1,
    think: float = 0.0,
    seed: int = 0,
) -> list[WorkItem]:
    """`count` conversations of `turns` items each: all first turns in order of arrival, then all second turns, …

    rate, cv       conversations a second and how bursty they come (`gamma_arrivals`); rate None: all at once
    prompt, output how long the own part of a prompt and the output are, of every turn
    prefixes       every conversation begins with one of so many texts of `prefix_tokens` tokens, picked at random
    think          mean seconds from the end of an answer to the next turn, exponential

    Each kind of number has a seed of its own, made from `seed`: another rate leaves the lengths as they are. Raises
    ValueError for a value out of its range, or prefixes without tokens.
    """
    _check_shared(prefixes, prefix_tokens)
    check_whole("turns", turns, 1)
    check_number("think", think, lambda seconds: 0 <= seconds <= MOST_WAIT, "seconds, 0 to 1e7")
    first = at_once(count) if rate is None else gamma_arrivals(count, rate, cv, _seed(seed, "arrivals"))
    prompts = prompt.draw(count * turns, _seed(seed, "prompts"))
    outputs = output.draw(count * turns, _seed(seed, "outputs"))
    pick, pause = random.Random(_seed(seed, "prefixes")), random.Random(_seed(seed, "think"))
    items = []
    for place in range(count * turns):
        own = {"prompt_tokens": prompts[place], "output_tokens": outputs[place]}
        if place >= count:
            items.append(WorkItem(pause.expovariate(1.0) * think, follows=place - count, **own))
        elif prefixes:
            items.append(WorkItem(first[place], prefix=pick.randrange(prefixes), prefix_tokens=prefix_tokens, **own))
        else:
            items.append(WorkItem(first[place], **own))
    return items


def own_tokens(place: int, item: WorkItem, vocab: int, seed: int = 0) -> list[int]:
    """The item's own `prompt_tokens` ids, from SPECIAL to vocab - 1; `place`: where it stands in its workload."""
    return _ids(f"{seed} item {place}", item.prompt_tokens, vocab)


def prefix_tokens_of(prefix: int, count: int, vocab: int, seed: int = 0) -> list[int]:
    """The first `count` ids of a shared prefix; a shorter piece of the same prefix is the beginning of a longer one."""
    return _ids(f"{seed} prefix {prefix}", count, vocab)


def prompt_ids(place: int, item: WorkItem, vocab: int, seed: int = 0, history: Sequence[int] = ()) -> list[int]:
    """An item's whole prompt: what came before in its conversation or the shared prefix, then its own tokens.

    `history`: prompt and output ids of the item it follows. Raises ValueError for a vocabulary of special ids only.
    """
    shared = [] if item.prefix is None else prefix_tokens_of(item.prefix, item.prefix_tokens, vocab, seed)
    return [*history, *shared, *own_tokens(place, item, vocab, seed)]


def check(items: Sequence[WorkItem]) -> None:
    """Raises ValueError for no items, or one that follows itself or a later one."""
    if not items:
        raise ValueError("a workload of no items: expected at least one")
    for place, item in enumerate(items):
        try:
            _check_follows(place, item)
        except ValueError as error:
            raise ValueError(f"item {place}: {error}") from None


def save(path: str | Path, items: Sequence[WorkItem]) -> None:
    """Write a workload as JSON lines, one object an item; fields at their defaults are left out.

    Raises ValueError for items that fail `check`, or a file that cannot be written.
    """
    check(items)
    defaults = {f.name: f.default for f in fields(WorkItem)}
    lines = [json.dumps({k: v for k, v in asdict(item).items() if v != defaults[k]}) for item in items]
    try:
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; expected a file in a folder that is there") from None


def load(path: str | Path) -> list[WorkItem]:
    """Read what `save` wrote. Blank lines are skipped.

    Raises ValueError that names the file, and the line if one is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}; expected a workload in JSON lines") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: expected a workload in JSON lines") from None
    items: list[WorkItem] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                items.append(_parse(line))
                _check_follows(len(items) - 1, items[-1])
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}") from None
    if not items:
        raise ValueError(f"{path} holds no items: expected a workload in JSON lines")
    return items


def _parse(line: str) -> WorkItem:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{line.strip()[:40]!r} is not JSON: expected one object a line") from None
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__}: expected an object")
    known = [f.name for f in fields(WorkItem)]
    for name in data:
        if name not in known:
            raise ValueError(f"{name!r} is no field: expected {', '.join(known)}")
    for name in ("arrival", "prompt_tokens", "output_tokens"):
        if name not in data:
            raise ValueError(f"{name} is missing: expected it in every item")
    return WorkItem(**data)


def _check_follows(place: int, item: WorkItem) -> None:
    if item.follows is not None and item.follows >= place:
        raise ValueError(f"follows is {item.follows}: expected an earlier item, below {place}")


def _check_shared(prefixes: int, prefix_tokens: int) -> None:
    check_whole("prefixes", prefixes, 0)
    check_whole("prefix_tokens", prefix_tokens, 0)
    if bool(prefixes) != bool(prefix_tokens):
        raise ValueError(f"prefixes is {prefixes} and prefix_tokens is {prefix_tokens}: expected both to be 0 or "
                         "neither")


def _seed(seed: int, what: str) -> int:
    """A seed for one kind of number, which has nothing to do with those of other kinds."""
    return random.Random(f"{seed} {what}").getrandbits(64)


def _ids(key: str, count: int, vocab: int) -> list[int]:
    check_whole("vocab", vocab, SPECIAL + 1, why=f": {SPECIAL} ids are left alone")
    return random.Random(key).choices(range(SPECIAL, vocab), k=count)
