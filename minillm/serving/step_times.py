"""How long a step takes, without taking it: from a roofline (*predicted*), or fitted to measured steps.

Either is a function of the step's query_lens [B] (new tokens of each row) and context_lens [B] (tokens each row attends
to, itself included), and gives seconds: what the simulator's clock advances by.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minillm.measure import cost, metrics
from minillm.measure.arguments import check_number, check_seconds, is_number
from minillm.measure.hardware import Accelerator, Machine
from minillm.measure.shape import ModelShape

StepTime = Callable[[Sequence[int], Sequence[int]], float]
Record = tuple[Sequence[int], Sequence[int], float]  # query_lens, context_lens, seconds


def roofline_times(shape: ModelShape, hardware: Accelerator | Machine, dtype: str, weight_bytes: float = 2.0,
                   kv_bytes: float = 2.0, *, efficiency: float = 1.0, overhead: float = 0.0) -> StepTime:
    """*Predicted* step times: the roofline's seconds / `efficiency` + `overhead` seconds, by `cost.predict_step`.

    weight_bytes per parameter, kv_bytes per cached value. `efficiency`: the share of the peaks that an implementation
    reaches; 1 is what none can beat. `overhead`: seconds a step costs whatever is in it (scheduling, launching).
    Raises ValueError for an efficiency outside a millionth to 1, a negative overhead, bytes that are none, or a dtype
    without a peak.
    """
    check_number("efficiency", efficiency, lambda share: 1e-6 <= share <= 1, "a millionth to 1")
    check_seconds("overhead", overhead)
    for name, value in (("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes)):
        check_number(name, value, lambda width: width > 0, "bytes, more than 0")

    def seconds(query_lens: Sequence[int], context_lens: Sequence[int]) -> float:
        predicted = cost.predict_step(shape, query_lens, context_lens, hardware, dtype, weight_bytes, kv_bytes)
        return predicted.seconds / efficiency + overhead

    seconds([1], [1])  # a wrong dtype is told now
    return seconds


@dataclass(frozen=True)
class FittedTimes:
    """A step's seconds = g(new tokens) + per_row · rows + per_key · keys read + per_pair · pairs of a query and a key.

    g goes straight from knot to knot, never falls, is level before the first knot and goes on as it was after the last.
    median_error, p95_error: of |fitted / measured - 1| over the records. bias: all fitted seconds over all measured
    ones, less 1: what a throughput is off by.
    """

    knots: tuple[float, ...]
    at_knots: tuple[float, ...]
    per_row: float
    per_key: float
    per_pair: float
    records: int = 0
    median_error: float = 0.0
    p95_error: float = 0.0
    bias: float = 0.0

    def __call__(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> float:
        pairs = sum(q * c for q, c in zip(query_lens, context_lens))
        seconds = self._tokens(sum(query_lens)) + self.per_row * len(query_lens)
        return seconds + self.per_key * sum(context_lens) + self.per_pair * pairs

    def __str__(self) -> str:
        return (f"fitted to {self.records} steps: off by {self.median_error:.1%} (median), {self.p95_error:.1%} (95 %),"
                f" in all by {self.bias:+.1%}")

    def _tokens(self, count: int) -> float:
        """g(count)."""
        after = min(max(bisect_right(self.knots, count), 1), len(self.knots) - 1)
        (x0, x1), (y0, y1) = self.knots[after - 1 : after + 1], self.at_knots[after - 1 : after + 1]
        return y0 + (y1 - y0) * max(0.0, (count - x0) / (x1 - x0))


def fit_times(records: Sequence[Record]) -> FittedTimes:
    """Step times that fit measured steps: non-negative least squares of the relative errors.

    A processor's step is not linear in its tokens (a matrix product of few rows reaches a fraction of the rate of one
    of many), hence the knots: one near each power of two that records are near. Attention has terms of its own. The
    records should hold decodes and prompts, few rows and many, short contexts and long ones: what never varies cannot
    be told apart. Raises ValueError for records that make no sense, or fewer than there are numbers to fit.
    """
    for place, (query_lens, context_lens, seconds) in enumerate(records):
        _check(place, query_lens, context_lens, seconds)
    tokens = np.array([sum(q) for q, _, _ in records], float)
    knots = _knots(tokens)
    if len(records) < len(knots) + 3 or len(knots) < 2:
        raise ValueError(f"{len(records)} records of {len(knots)} sizes of step: expected at least 2 sizes, from one "
                         f"power of two to another, and {max(2, len(knots)) + 3} records")
    measured = np.array([seconds for _, _, seconds in records])
    others = [(len(q), sum(c), sum(map(int.__mul__, q, c))) for q, c, _ in records]
    terms = np.column_stack([np.ones(len(records)), *_climbs(tokens, knots), np.array(others, float)])
    found = nnls(terms / measured[:, None], np.ones(len(records)))
    fitted, split = terms @ found, len(knots)
    errors = np.abs(fitted / measured - 1).tolist()
    return FittedTimes(
        tuple(knots.tolist()), tuple(np.cumsum(found[:split]).tolist()), *found[split:].tolist(), len(records),
        metrics.percentile(errors, 50), metrics.percentile(errors, 95), float(fitted.sum() / measured.sum() - 1))


def _check(place: int, query_lens: Sequence[int], context_lens: Sequence[int], seconds: float) -> None:
    if len(query_lens) != len(context_lens) or not query_lens:
        raise ValueError(f"record {place} has {len(query_lens)} query lengths and {len(context_lens)} context lengths: "
                         "expected as many of both, at least one")
    for new, context in zip(query_lens, context_lens):
        if not (is_number(new) and is_number(context) and 1 <= new <= context):
            raise ValueError(f"record {place} has {new} new tokens in a context of {context}: expected 1 to {context}")
    if not (is_number(seconds) and seconds > 0):
        raise ValueError(f"record {place} took {seconds}: expected seconds, more than 0")


def _knots(tokens: np.ndarray) -> np.ndarray:
    """[K] ascending: the mean of the step sizes nearest to each power of two (in the logarithm), where there are any.

    A knot without records about it would leave open where between its neighbours the time rises.
    """
    nearest = np.round(np.log2(tokens))
    return np.array([tokens[nearest == power].mean() for power in np.unique(nearest)])


def _climbs(tokens: np.ndarray, knots: np.ndarray) -> list[np.ndarray]:
    """For each stretch between knots how far along it each record is: 0 before, 1 after, beyond 1 only in the last.

    g is its first value plus these times the rise of each stretch; that no rise is negative makes g monotone.
    """
    along = [(tokens - low) / (high - low) for low, high in zip(knots, knots[1:])]
    return [np.clip(part, 0, 1) for part in along[:-1]] + [np.maximum(part, 0) for part in along[-1:]]


def nnls(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 [N] for which |matrix x - target| is least (the active set method of Lawson and Hanson 1974).

    matrix [M, N], target [M]. Unknowns stand at 0 until freeing one would lessen the error; one that least squares over
    the free ones would make negative goes back to 0.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    x, free = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], bool)
    for _ in range(3 * matrix.shape[1]):  # Lawson and Hanson's own bound; as a rule one round for each unknown
        gain = np.where(free, -np.inf, scaled.T @ (target - scaled @ x))
        if gain.max() <= 1e-10 * np.linalg.norm(target):
            break
        free[gain.argmax()] = True
        while True:
            best = np.zeros_like(x)
            best[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            below = free & (best < 0)
            if not below.any():
                break
            x += (best - x) * (x[below] / (x[below] - best[below])).min()  # as far as all stay at or above 0
            free &= x > 1e-12
            x[~free] = 0.0
        x = best
    return x / scale
