"""From logits to a token: what a request asks for, and how it is drawn.

In vLLM's order: penalties, temperature, min-p, top-k, top-p, then one draw. Greedy requests (temperature 0) take the
largest logit after penalties. Log-probabilities are those of the model itself, before any of this. Sampling happens on
the CPU, in float64: a draw takes one number from the request's own generator, so that the same seed gives the same text
on any device and beside any neighbours. What is the same for all rows is done for all at once; the rest only looks at
the few tokens that can be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled; names and meanings are vLLM's.

    n                   answers to the same prompt, each with its own draws; more than 1 needs a temperature above 0
    temperature         0 is greedy; otherwise logits are divided by it
    top_p               keep the fewest tokens whose probabilities reach it, (0, 1]
    top_k               keep the k most likely tokens; 0 or -1: all
    min_p               keep tokens at least this fraction as likely as the likeliest, [0, 1]
    repetition_penalty  > 0; above 1 makes every token of prompt and output less likely
    frequency_penalty   subtracted from a logit for each time its token was output, [-2, 2]
    presence_penalty    subtracted once from the logit of a token that was output, [-2, 2]
    seed                same seed, same text; None: a new one each time. Answer i of n draws with seed + i
    stop                strings that end the output; not shown unless include_stop_str_in_output
    stop_token_ids      tokens that end the output, besides the model's end tokens
    ignore_eos          go on past the model's end tokens
    max_tokens          output tokens at most; None: until the context ends
    logprobs            report this many most likely tokens of each step, and the drawn one
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    logprobs: int | None = None
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            several = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
            object.__setattr__(self, name, tuple(value) if several else () if value is None else (value,))
        self._check("stop", all(isinstance(s, str) and s for s in self.stop), "strings that are not empty")
        self._check("stop_token_ids", all(map(_is_int, self.stop_token_ids)), "token ids")
        self._check_number("temperature", lambda v: 0 <= v < math.inf, "0 (greedy) or a positive number")
        self._check_number("top_p", lambda v: 0 < v <= 1, "more than 0, at most 1")
        self._check_number("min_p", lambda v: 0 <= v <= 1, "0 to 1")
        self._check_number("repetition_penalty", lambda v: 0 < v < math.inf, "a positive number")
        self._check_number("frequency_penalty", lambda v: -2 <= v <= 2, "-2 to 2")
        self._check_number("presence_penalty", lambda v: -2 <= v <= 2, "-2 to 2")
        self._check("n", _is_int(self.n) and self.n >= 1, "at least 1")
        self._check("n", self.n == 1 or self.temperature > 0, "1 with temperature 0: greedy answers are all the same")
        self._check("top_k", _is_int(self.top_k) and self.top_k >= -1, "a count, or 0 for all tokens")
        self._check("max_tokens", self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
                    "at least 1, or None")
        self._check("logprobs", self.logprobs is None or (_is_int(self.logprobs) and 0 <= self.logprobs <= 20),
                    "0 to 20, or None")
        # torch's generators take 64 bits
        self._check("seed", self.seed is None or (_is_int(self.seed) and -(2**63) <= self.seed < 2**63),
                    "an integer of 64 bits, or None")
        for name in ("ignore_eos", "include_stop_str_in_output"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ValueError(f"{name} is {getattr(self, name)!r}: expected {expected}")

    def _check_number(self, name: str, good: Callable[[float], bool], expected: str) -> None:
        value = getattr(self, name)
        # a NaN fails every comparison, and so is refused like any other value out of range
        self._check(name, isinstance(value, (int, float)) and not isinstance(value, bool) and good(value), expected)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row: logits [B, V] -> ids [B]; of equals, the lowest id."""
    return logits.argmax(dim=-1)


def top_p_filter(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Nucleus sampling's cut (Holtzman et al. 2020): logits [B, V] -> the same with -inf outside each row's nucleus.

    The nucleus is the fewest most likely tokens whose probabilities sum to at least top_p in (0, 1]; it always holds
    at least one.
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)  # [B, V], most likely first
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the tokens ahead of each one already hold
    ordered = ordered.masked_fill(before >= top_p, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, ids, ordered)  # back in the vocabulary's order


def top_k_filter(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """logits [B, V] with -inf below each row's k-th largest; equals of the k-th stay (as in vLLM)."""
    least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[:, -1:]  # [B, 1]
    return logits.masked_fill(logits < least, float("-inf"))


def min_p_filter(logits: torch.Tensor, min_p: float) -> torch.Tensor:
    """logits [B, V] with -inf where a token is less than min_p times as likely as its row's likeliest."""
    least = logits.amax(dim=-1, keepdim=True) + (math.log(min_p) if min_p > 0 else -math.inf)  # [B, 1]
    return logits.masked_fill(logits < least, float("-inf"))


def apply_penalties(logits: torch.Tensor, prompt_ids: Sequence[int], output_ids: Sequence[int],
                    params: SamplingParams) -> torch.Tensor:
    """One row's logits [V] after repetition (Keskar et al. 2019), frequency and presence penalties; a new tensor."""
    logits = logits.clone()
    seen = torch.tensor(sorted({*prompt_ids, *output_ids}), dtype=torch.int64)
    chosen = logits[seen]
    # a positive logit is divided, a negative one multiplied: both become less likely
    logits[seen] = torch.where(chosen > 0, chosen / params.repetition_penalty, chosen * params.repetition_penalty)
    counts = torch.bincount(torch.tensor(output_ids, dtype=torch.int64), minlength=logits.shape[-1])  # [V]
    counts = counts.to(logits.dtype)  # an integer times a float would be float32, whatever the logits are
    return logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0).to(logits.dtype)


def draw(probabilities: torch.Tensor, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the cumulative distribution of probabilities [V], float64."""
    cumulative = probabilities.cumsum(0)
    place = int(torch.searchsorted(cumulative, uniform * float(cumulative[-1]), right=True))
    if place < len(probabilities):
        return place
    return int(probabilities.nonzero()[-1])  # rounding took the point past the end: the last token that can be


@dataclass
class Logprob:
    """Log-probability of a token under the model, and its rank (1: the most likely); vLLM's fields."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass
class RequestSampler:
    """What drawing one request's tokens takes: its parameters, its generator, and what it has seen."""

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    generator: Any = None

    def __post_init__(self) -> None:
        if not self.params.greedy:
            self.generator = torch.Generator()
            if self.params.seed is None:
                self.generator.seed()  # from the system's entropy
            else:
                self.generator.manual_seed(self.params.seed)

    def uniform(self) -> float:
        """The request's next number in [0, 1)."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))


def nucleus(logits: torch.Tensor, probabilities: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left of one row [V] after `top_p_filter`: (ids [K] ascending, their logits [K], some of them -inf).

    All tokens less likely than (1 - top_p) / V together hold less than 1 - top_p, so none of them is in the nucleus:
    only the others are sorted, some hundreds of tens of thousands.
    """
    ids = (probabilities >= (1 - top_p) / len(probabilities)).nonzero()[:, 0]  # [K]
    held = float(probabilities[ids].sum())  # top_p of the whole is top_p / held of these
    return ids, top_p_filter(logits[ids][None], min(1.0, top_p / held))[0]


def draw_row(logits: torch.Tensor, probabilities: torch.Tensor, params: SamplingParams, uniform: float) -> int:
    """A token from one row: logits [V] after temperature, probabilities [V] their softmax, uniform in [0, 1)."""
    if params.min_p > 0 or params.top_k > 0:
        row = logits[None]  # [1, V]
        row = min_p_filter(row, params.min_p) if params.min_p > 0 else row
        row = top_k_filter(row, params.top_k) if params.top_k > 0 else row
        logits, probabilities = row[0], row[0].softmax(-1)
    if params.top_p == 1:
        return draw(probabilities, uniform)
    ids, kept = nucleus(logits, probabilities, params.top_p)
    return int(ids[draw(kept.softmax(-1), uniform)])


def top_logprobs(logits: torch.Tensor, token: int, count: int) -> dict[int, Logprob]:
    """The drawn token and the `count` most likely ones, from one row of raw logits [V]."""
    logprobs = logits.log_softmax(-1)
    found = {token: Logprob(float(logprobs[token]), int((logprobs > logprobs[token]).sum()) + 1)}
    values, ids = logprobs.topk(count)
    for rank, (value, token_id) in enumerate(zip(values.tolist(), ids.tolist()), start=1):
        found.setdefault(token_id, Logprob(value, rank))
    return found


def sample(logits: torch.Tensor, requests: Sequence[RequestSampler]) -> list[int]:
    """One token for each request, from logits [B, V] in the same order; remembered as its output."""
    if all(r.params.greedy and not r.params.penalized and r.params.logprobs is None for r in requests):
        tokens = greedy(logits).tolist()  # one call for the whole batch, and nothing but B ids leaves the device
    else:
        tokens = _sample_rows(logits.cpu().double(), requests)
    for request, token in zip(requests, tokens):
        request.output_ids.append(token)
    return tokens


def _sample_rows(raw: torch.Tensor, requests: Sequence[RequestSampler]) -> list[int]:
    """`sample` for any mixture of parameters, from raw logits [B, V], float64."""
    logits = raw
    penalized = [row for row, request in enumerate(requests) if request.params.penalized]
    if penalized:
        logits = raw.clone()
        for row in penalized:
            request = requests[row]
            logits[row] = apply_penalties(raw[row], request.prompt_ids, request.output_ids, request.params)
    tokens = greedy(logits).tolist()
    drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
    if drawn:
        temperatures = torch.tensor([requests[row].params.temperature for row in drawn], dtype=torch.float64)
        scaled = logits[drawn] / temperatures[:, None]  # [D, V]
        for row, own, probabilities in zip(drawn, scaled, scaled.softmax(-1)):
            tokens[row] = draw_row(own, probabilities, requests[row].params, requests[row].uniform())
    for row, request in enumerate(requests):
        if request.params.logprobs is not None:
            request.logprobs.append(top_logprobs(raw[row], tokens[row], request.params.logprobs))
    return tokens
