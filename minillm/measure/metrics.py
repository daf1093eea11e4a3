"""What a user feels, computed from timestamps: TTFT, TPOT, ITL, end-to-end time, throughput, goodput.

All times are seconds on one clock. TTFT (time to first token) is prefill plus waiting. ITL (inter-token latency) is
each gap between later tokens, so the first token never counts into it. TPOT (time per output token) is their mean, per
request: (E2E - TTFT) / (N - 1), which a request of one token does not have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.measure.arguments import check_number, is_number


def request_metrics(arrival: float, token_times: Sequence[float]) -> tuple[float, float | None, list[float]]:
    """(TTFT, TPOT, ITLs) of one request, in seconds.

    `arrival`: when the request came; `token_times` [N]: when each output token reached the user, ascending, N >= 1.
    ITLs are the N - 1 gaps between tokens. TPOT is (last - first) / (N - 1), None when there is only one token.
    """
    ttft = token_times[0] - arrival
    itls = [later - earlier for earlier, later in zip(token_times, token_times[1:])]
    if len(token_times) == 1:
        return ttft, None, itls
    tpot = (token_times[-1] - token_times[0]) / (len(token_times) - 1)
    return ttft, tpot, itls


@dataclass(frozen=True)
class RequestTimes:
    """One finished request: when it came, when each of its tokens was there, how long its prompt was.

    Raises ValueError for no tokens, times that do not ascend, a token before the arrival, or a time that is no number.
    """

    arrival: float
    token_times: tuple[float, ...]
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_times", tuple(self.token_times))
        if not self.token_times:
            raise ValueError("a request has no token times: expected at least one")
        if not all(map(is_number, (self.arrival, *self.token_times))):
            raise ValueError("a request's times hold a value that is not a finite number: expected seconds")
        if self.token_times[0] < self.arrival:
            raise ValueError(f"a token came at {self.token_times[0]}: expected no earlier than its request's arrival, "
                             f"{self.arrival}")
        for earlier, later in zip(self.token_times, self.token_times[1:]):
            if later < earlier:
                raise ValueError(f"a token at {later} follows one at {earlier}: expected ascending times")

    @property
    def ttft(self) -> float:
        return request_metrics(self.arrival, self.token_times)[0]

    @property
    def tpot(self) -> float | None:
        return request_metrics(self.arrival, self.token_times)[1]

    @property
    def itls(self) -> list[float]:
        return request_metrics(self.arrival, self.token_times)[2]

    @property
    def e2e(self) -> float:
        """Arrival to last token."""
        return self.token_times[-1] - self.arrival


@dataclass(frozen=True)
class SLO:
    """What a request must meet to count as good, in seconds; None: not asked. `tpot` is met by a request of one token.

    Raises ValueError for a limit that is no finite number above 0.
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e)):
            if limit is not None:
                check_number(name, limit, lambda seconds: seconds > 0, "seconds, more than 0, or None")

    def met(self, request: RequestTimes) -> bool:
        """Whether the request meets every limit."""
        pairs = ((self.ttft, request.ttft), (self.tpot, request.tpot), (self.e2e, request.e2e))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile (0 to 100), linear between neighbours, as numpy's default. ValueError when there are none."""
    if not values:
        raise ValueError("percentile of no values: expected at least one")
    check_number("p", p, lambda percent: 0 <= percent <= 100, "0 to 100")
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Percentiles:
    """The middle and the tail of a latency, in seconds, and its mean."""

    p50: float
    p95: float
    p99: float
    mean: float


@dataclass(frozen=True)
class Summary:
    """Many requests at once. `itl` pools every gap of every request, so long answers weigh more than in `tpot`.

    Rates are over the time from the first arrival to the last token. `tpot` and `itl` are None when no request has a
    second token; `goodput` (requests per second that met every limit) is None without an SLO.
    """

    requests: int
    output_tokens: int
    seconds: float
    ttft: Percentiles
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles
    requests_per_second: float
    output_tokens_per_second: float
    goodput: float | None


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    return Percentiles(*(percentile(values, p) for p in (50, 95, 99)), mean=math.fsum(values) / len(values))


def summarize(requests: Sequence[RequestTimes], slo: SLO | None = None) -> Summary:
    """Latency percentiles, throughput and goodput of a run. Raises ValueError for no requests."""
    if not requests:
        raise ValueError("no requests to summarize: expected at least one")
    seconds = max(r.token_times[-1] for r in requests) - min(r.arrival for r in requests)
    per_second = 1 / seconds if seconds > 0 else math.inf
    tokens = sum(len(r.token_times) for r in requests)
    return Summary(
        requests=len(requests),
        output_tokens=tokens,
        seconds=seconds,
        ttft=_percentiles([r.ttft for r in requests]),
        tpot=_percentiles([r.tpot for r in requests if r.tpot is not None]),
        itl=_percentiles([gap for r in requests for gap in r.itls]),
        e2e=_percentiles([r.e2e for r in requests]),
        requests_per_second=len(requests) * per_second,
        output_tokens_per_second=tokens * per_second,
        goodput=None if slo is None else sum(map(slo.met, requests)) * per_second)
