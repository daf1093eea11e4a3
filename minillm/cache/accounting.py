"""What KV memory is used for, over a trace of requests: a simulation in tokens, no tensor and no clock.

Every request brings a prompt and then grows by one token a step until it is complete. Requests wait in line; the first
enters as soon as there is memory for it, by the rules of the memory that is looked at. Four parts of the memory are
told apart, after Kwon et al. 2023, each as a mean over the steps in which somebody waits:
    written   holds K and V of a token
    reserved  belongs to a request, but holds nothing (yet): internal fragmentation and reservation
    stranded  belongs to nobody, and is of no use to the request that waits: external fragmentation
    spare     belongs to nobody
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from minillm.cache import blocks
from minillm.cache.errors import PoolExhausted
from minillm.cache.tables import BlockTables


class Memory(Protocol):
    """A way to hand out `capacity` tokens of memory."""

    capacity: int

    def holds(self, prompt: int, final: int) -> bool:
        """Whether all of this memory is enough for one request that ends with `final` tokens."""

    def enter(self, request: int, prompt: int, final: int) -> bool:
        """Make room for a request's prompt; False, with nothing changed, if there is none."""

    def grow(self, request: int, tokens: int) -> bool:
        """Make room up to so many tokens of a request; False if there is none."""

    def leave(self, request: int) -> None:
        """Give a request's memory back."""

    def reserved(self) -> int:
        """Tokens of memory that belong to a request."""


class Contiguous:
    """One range for each request, first fit, taken whole when it enters: `reserve(prompt, final)` tokens.

    The naive way reserves the longest possible request for everybody; an oracle would reserve exactly `final`.
    """

    def __init__(self, capacity: int, reserve: Callable[[int, int], int]) -> None:
        self.capacity = capacity
        self.reserve = reserve
        self.ranges: dict[int, tuple[int, int]] = {}

    def holds(self, prompt: int, final: int) -> bool:
        return self.reserve(prompt, final) <= self.capacity

    def enter(self, request: int, prompt: int, final: int) -> bool:
        size, start = self.reserve(prompt, final), 0
        for first, end in sorted(self.ranges.values()):
            if first - start >= size:
                break
            start = end
        if start + size > self.capacity:
            return False
        self.ranges[request] = (start, start + size)
        return True

    def grow(self, request: int, tokens: int) -> bool:
        return True

    def leave(self, request: int) -> None:
        del self.ranges[request]

    def reserved(self) -> int:
        return sum(end - start for start, end in self.ranges.values())


class Paged:
    """Blocks as they are needed: the real pool and tables, without tensors."""

    def __init__(self, capacity: int, block_size: int = 16) -> None:
        self.tables = BlockTables(blocks.BlockPool(capacity // block_size, block_size))
        self.capacity = self.tables.pool.num_blocks * block_size

    def holds(self, prompt: int, final: int) -> bool:
        return final <= self.capacity

    def enter(self, request: int, prompt: int, final: int) -> bool:
        return self.grow(request, prompt)

    def grow(self, request: int, tokens: int) -> bool:
        try:
            self.tables.reserve({request: tokens})
        except PoolExhausted:
            return False
        self.tables.lengths[request] = tokens
        return True

    def leave(self, request: int) -> None:
        self.tables.free(request)

    def reserved(self) -> int:
        pool = self.tables.pool
        return (pool.num_blocks - pool.available) * pool.block_size


@dataclass(frozen=True)
class Use:
    """Shares of the memory, which sum to 1; requests at once; how often one was put back in line for lack of memory."""

    written: float
    reserved: float
    stranded: float
    spare: float
    concurrency: float
    preemptions: int

    @property
    def waste(self) -> float:
        """The share that nobody can use though somebody waits."""
        return self.reserved + self.stranded


def simulate(memory: Memory, requests: Sequence[tuple[int, int]]) -> Use:
    """Run requests (prompt, output tokens) through a memory, all of them there at the start, first come first served.

    A request that cannot grow puts the youngest one back in line, its tokens lost (it may be itself). Raises ValueError
    for a request that the empty memory cannot hold.
    """
    for request, (prompt, output) in enumerate(requests):
        if not memory.holds(prompt, prompt + output):
            raise ValueError(f"request {request} is {prompt + output} tokens: expected one that fits "
                             f"{memory.capacity}")
    waiting = deque(range(len(requests)))
    running: dict[int, int] = {}  # request -> tokens, the oldest first
    totals, steps, preemptions = [0, 0, 0, 0], 0, 0
    while waiting or running:
        while waiting and memory.enter(waiting[0], requests[waiting[0]][0], sum(requests[waiting[0]])):
            running[waiting[0]] = requests[waiting[0]][0]
            waiting.popleft()
        if waiting:
            written, reserved = sum(running.values()), memory.reserved()
            free = memory.capacity - reserved
            stranded = free if isinstance(memory, Contiguous) else 0
            for i, value in enumerate((written, reserved - written, stranded, len(running))):
                totals[i] += value
            steps += 1
        preemptions += _advance(memory, requests, running, waiting)
    written, reserved, stranded, count = (total / max(steps, 1) for total in totals)
    shares = [part / memory.capacity for part in (written, reserved, stranded)]
    return Use(*shares, 1 - sum(shares), count, preemptions)


def _advance(memory: Memory, requests: Sequence[tuple[int, int]], running: dict[int, int],
             waiting: deque[int]) -> int:
    """One token for every running request; those that are complete leave. Returns how many were put back in line."""
    put_back = 0
    for request in list(running):
        if request not in running:
            continue
        if running[request] == sum(requests[request]):
            memory.leave(request)
            del running[request]
            continue
        while request in running and not memory.grow(request, running[request] + 1):
            youngest = next(reversed(running))
            memory.leave(youngest)
            del running[youngest]
            waiting.appendleft(youngest)
            put_back += 1
        if request in running:
            running[request] += 1
    return put_back
