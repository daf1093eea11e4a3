"""A workload on the real engine, on the real clock: each request joins when its time comes, whatever runs then."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minillm.measure import workload
from minillm.measure.metrics import RequestTimes
from minillm.measure.workload import WorkItem
from minillm.serving.engine import Engine
from minillm.serving.request import Request

MakeRequest = Callable[[list[int], WorkItem], Request]
"""make_request(prompt_ids, item) -> a request for exactly item.output_tokens tokens."""


@dataclass
class Replay:
    """What came of a workload, by each item's place in it. `refused`: why an item could never run."""

    start: float = 0.0
    requests: dict[int, Request] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def times(self) -> list[RequestTimes]:
        """For `metrics.summarize`, in the workload's order, on time.perf_counter()."""
        return [self.requests[place].output().times for place in sorted(self.requests)]


def replay(items: Sequence[WorkItem], engine: Engine, make_request: MakeRequest, vocab: int, seed: int = 0,
           on_add: Callable[[int, Request, list[int]], None] | None = None) -> Replay:
    """Serve a workload to its end; what an item follows, its arrival and its prompt mean as in `simulator.simulate`.

    on_add(place, request, sequences) is called as an item joins: the engine's records name its sequences.

    A request's arrival is the time it was due: if a step was running then, that wait is part of its TTFT. Raises
    ValueError for items that fail `workload.check`.
    """
    workload.check(items)
    found = Replay(start=time.perf_counter())
    due = [(item.arrival, place, []) for place, item in enumerate(items) if item.follows is None]
    heapq.heapify(due)
    places: dict[str, int] = {}
    while due or engine.has_unfinished:
        while due and due[0][0] <= time.perf_counter() - found.start:
            arrival, place, history = heapq.heappop(due)
            item = items[place]
            try:
                engine.scheduler.check_fits(item.tokens_after(len(history)), item.output_tokens)
                request = make_request(workload.prompt_ids(place, item, vocab, seed, history), item)
                request.arrival = found.start + arrival
                seqs = engine.add(request)
            except ValueError as error:
                found.refused[place] = str(error)
                continue
            found.requests[place], places[request.request_id] = request, place
            if on_add is not None:
                on_add(place, request, seqs)
        if not engine.has_unfinished:
            time.sleep(max(0.0, due[0][0] - (time.perf_counter() - found.start)) if due else 0)
            continue
        for request in engine.step():
            request.events.clear()
            if request.finished:
                _follow(items, places[request.request_id], request, due, time.perf_counter() - found.start)
    for place, item in enumerate(items):
        if item.follows in found.refused:
            found.refused[place] = f"item {item.follows}, which it follows, was refused"
    return found


def _follow(items: Sequence[WorkItem], ended: int, request: Request, due: list, now: float) -> None:
    """Let the items that follow one that ended come, after their time to think."""
    for place, item in enumerate(items):
        if item.follows == ended:
            heapq.heappush(due, (now + item.arrival, place, [*request.prompt_ids, *request.answers[0].token_ids]))
