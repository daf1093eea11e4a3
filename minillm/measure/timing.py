"""Timing that means something: synchronized, warmed up, repeated, reported as a median with its spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated runs. `low` and `high` are the quartiles: half of the runs lie between them."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def low(self) -> float:
        return self._quartile(0)

    @property
    def high(self) -> float:
        return self._quartile(2)

    def _quartile(self, which: int) -> float:
        if len(self.samples) < 2:
            return self.samples[0]
        return statistics.quantiles(self.samples, n=4, method="inclusive")[which]

    def __str__(self) -> str:
        return f"{self.median * 1e3:.3g} ms (half between {self.low * 1e3:.3g} and {self.high * 1e3:.3g})"


def synchronize(device: Any = None) -> None:
    """Wait for the device: a GPU call returns before its work is done, so an unsynchronized clock shows the launch."""
    import torch

    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def time_call(call: Callable[[], Any], device: Any = None, warmup: int = 2, repeats: int = 7,
              min_seconds: float = 0.0) -> Timing:
    """Time `call` at least `repeats` times, and until `min_seconds` have been measured.

    Raises ValueError for fewer than one repeat or a negative warm-up.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: expected at least 1")
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}: expected 0 or more")
    for _ in range(warmup):
        call()
    synchronize(device)
    samples: list[float] = []
    while len(samples) < repeats or sum(samples) < min_seconds:
        begin = time.perf_counter()
        call()
        synchronize(device)
        samples.append(time.perf_counter() - begin)
    return Timing(tuple(samples))


def alternate(calls: dict[str, Callable[[], Any]], rounds: int = 7, device: Any = None,
              warmup: int = 1) -> dict[str, Timing]:
    """Time several calls in turn, round after round, so that a slow moment of the machine hits all of them.

    Every other round goes backwards: none is always the one that runs on a cache warmed by its neighbour.
    Raises ValueError for no calls or fewer than one round.
    """
    if not calls:
        raise ValueError("nothing to time: expected at least one call")
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}: expected at least 1")
    names: Sequence[str] = list(calls)
    for _ in range(warmup):
        for name in names:
            calls[name]()
    synchronize(device)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            begin = time.perf_counter()
            calls[name]()
            synchronize(device)
            samples[name].append(time.perf_counter() - begin)
    return {name: Timing(tuple(values)) for name, values in samples.items()}
