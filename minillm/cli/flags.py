"""Flags that `bench` and `simulate` share: a group is a dataclass, whose fields are a command's options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Option

if TYPE_CHECKING:
    from minillm.measure.metrics import SLO
    from minillm.measure.workload import Lengths, WorkItem

MOST_REQUESTS = 10**6  # with their follow-ups: what a workload's items take in memory
MOST_SEQUENCES = 10**5  # that run at once: far more than any GPU holds
MOST_TOKENS = 10**9  # of a prompt or an output
TAIL = 4  # a log-normal length is cut at so many medians: with σ = 1, one in twelve


def takes(**groups: Any) -> Callable[[Callable], Callable]:
    """takes(work=Work()): the command's parameter `work` becomes Work's fields as flags, defaults as in that object."""

    def spread(command: Callable) -> Callable:
        def run(**values: Any) -> Any:
            for name, usual in groups.items():
                values[name] = replace(usual, **{f.name: values.pop(f.name) for f in fields(usual)})
            return command(**values)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in groups]
        flags = [parameter for usual in groups.values() for parameter in _parameters(usual)]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *flags)])
        return run

    return spread


def _parameters(usual: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(type(usual), include_extras=True)
    return [inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(usual, f.name),
                              annotation=hints[f.name]) for f in fields(usual)]


def changed(group: Any, usual: Any) -> list[str]:
    """The flags of a group that were given another value than the usual one."""
    return ["--" + f.name.replace("_", "-") for f in fields(group) if getattr(group, f.name) != getattr(usual, f.name)]


@dataclass(frozen=True)
class Work:
    """A workload: made from numbers and a seed, or read from a file."""

    requests: Annotated[int, Option(help="How many; with --turns, how many conversations.")] = 24
    rate: Annotated[float, Option(help="Requests a second, on average. inf: all at once.")] = math.inf
    burstiness: Annotated[float, Option(help="Standard deviation of the gaps between them over their mean. 1: Poisson; "
                                        "0: a clock; more: bursts.")] = 1.0
    prompt_tokens: Annotated[int, Option(help="Median length of a prompt.")] = 64
    output_tokens: Annotated[int, Option(help="Median length of an output.")] = 32
    sigma: Annotated[float, Option(help="Spread of both lengths, which are log-normal (most are short, a few "
                                   "very long): σ of their logarithm. 0: all alike.")] = 1.0
    max_prompt_tokens: Annotated[int | None, Option(help="Longest prompt. Default: 4 medians.")] = None
    max_output_tokens: Annotated[int | None, Option(help="Longest output. Default: 4 medians.")] = None
    prefixes: Annotated[int, Option(help="Each prompt begins with one of so many shared texts.")] = 0
    prefix_tokens: Annotated[int, Option(help="Length of each shared text.")] = 0
    turns: Annotated[int, Option(help="Requests of a conversation, each on top of all that was said.")] = 1
    think: Annotated[float, Option(help="Seconds between turns, on average.")] = 0.0
    seed: Annotated[int, Option(help="The same seed makes the same workload.")] = 0
    workload: Annotated[str | None, Option(metavar="FILE", help="Read the workload from JSON lines instead.")] = None
    save: Annotated[str | None, Option(metavar="FILE", help="Write the workload as JSON lines.")] = None


@dataclass(frozen=True)
class Limits:
    """What a scheduler may do in a step."""

    max_num_seqs: Annotated[int, Option(help="Sequences that run at once.")] = 16
    max_num_batched_tokens: Annotated[int, Option(help="Tokens of one step at most; long prompts go in chunks.")] = 512
    policy: Annotated[str, Option(help="Who goes first: fcfs, shortest-prompt or priority.")] = "fcfs"
    prefix_index: Annotated[str, Option(help="How known beginnings are found: hash (whole blocks), radix (to the "
                                        "token) or none.")] = "hash"
    kv_cache_memory: Annotated[str | None, Option(metavar="SIZE", help="Memory for K and V, such as 200MB. Default: "
                                                  "what is needed, as far as it is free.")] = None

    def check(self) -> None:
        """Raises ValueError for limits of a step that leave no room for a token of each sequence."""
        at_most("--max-num-seqs", self.max_num_seqs, MOST_SEQUENCES)
        at_most("--max-num-batched-tokens", self.max_num_batched_tokens, MOST_TOKENS)
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(f"--max-num-seqs is {self.max_num_seqs}: expected at most --max-num-batched-tokens, "
                             f"{self.max_num_batched_tokens}, a token for each that decodes")


@dataclass(frozen=True)
class Goal:
    """What a request must meet to count into goodput."""

    slo_ttft: Annotated[float | None, Option(help="Goodput counts requests whose TTFT is at most so many "
                                             "seconds.")] = None
    slo_tpot: Annotated[float | None, Option(help="The same for TPOT.")] = None

    def slo(self) -> SLO | None:
        """None when nothing is asked. Raises ValueError for a limit that is not positive."""
        from minillm.measure.metrics import SLO

        for flag, limit in (("--slo-ttft", self.slo_ttft), ("--slo-tpot", self.slo_tpot)):
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"{flag} is {limit}: expected seconds, more than 0")
        return None if self.slo_ttft is None and self.slo_tpot is None else SLO(self.slo_ttft, self.slo_tpot)


def items_of(work: Work, usual: Work) -> list[WorkItem]:
    """The workload that the flags ask for, written to --save too. Raises ValueError, one line that names the flag."""
    from minillm.measure import workload

    if work.workload is None:
        items = _make(work)
    else:
        also = [flag for flag in changed(work, usual) if flag not in ("--workload", "--save", "--seed")]
        if also:
            raise ValueError(f"{also[0]} and --workload: expected one of the two, the file says it all")
        items = _named("--workload", lambda: workload.load(work.workload))
    if work.save is not None:
        _named("--save", lambda: workload.save(work.save, items))
    return items


def _named(flag: str, call: Callable[[], Any]) -> Any:
    """What it returns; a ValueError of it begins with the flag."""
    try:
        return call()
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def at_most(flag: str, value: int, most: int) -> None:
    """Raises ValueError for a value outside of 1 to `most`."""
    if not 1 <= value <= most:
        raise ValueError(f"{flag} is {value}: expected 1 to {most:,}")


def _make(work: Work) -> list[WorkItem]:
    from minillm.measure import workload

    at_most("--requests", work.requests, MOST_REQUESTS)
    at_most("--turns", work.turns, MOST_REQUESTS // work.requests)
    if (work.prefixes == 0) != (work.prefix_tokens == 0):
        raise ValueError(f"--prefixes is {work.prefixes} and --prefix-tokens is {work.prefix_tokens}: expected both to "
                         "be 0 or neither")
    if not 0 <= work.burstiness <= 100:
        raise ValueError(f"--burstiness is {work.burstiness}: expected 0 to 100")
    if work.rate == math.inf and work.burstiness != 1:
        raise ValueError(f"--burstiness is {work.burstiness} and --rate is inf: expected a rate, there are no gaps")
    if work.think and work.turns == 1:
        raise ValueError(f"--think is {work.think} and --turns is 1: expected more turns")
    return workload.make_workload(
        work.requests, rate=None if work.rate == math.inf else work.rate, cv=work.burstiness,
        prompt=_lengths("--prompt-tokens", work.prompt_tokens, work.sigma, work.max_prompt_tokens),
        output=_lengths("--output-tokens", work.output_tokens, work.sigma, work.max_output_tokens),
        prefixes=work.prefixes, prefix_tokens=work.prefix_tokens, turns=work.turns, think=work.think, seed=work.seed)


def _lengths(flag: str, median: int, sigma: float, maximum: int | None) -> Lengths:
    from minillm.measure.workload import Lengths

    at_most(flag, median, MOST_TOKENS)
    longest = flag.replace("--", "--max-")
    if maximum is not None and maximum < median:
        raise ValueError(f"{longest} is {maximum}: expected at least {flag}, {median}")
    if maximum is not None:
        at_most(longest, maximum, MOST_TOKENS)
    return Lengths(median, sigma, TAIL * median if maximum is None else maximum)
