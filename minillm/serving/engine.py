"""The engine: requests in, a step at a time, tokens out. A scheduler decides, an executor computes, this samples.

Requests join and leave between steps, at any time. What a request gets does not depend on who runs beside it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from minillm.cache.blocks import BlockPool
from minillm.cache.errors import PoolExhausted
from minillm.decoding import sampling
from minillm.serving.executor import Executor
from minillm.serving.request import Answer, Request
from minillm.serving.scheduler import Scheduler, Sequence, StepPlan


@dataclass(frozen=True)
class StepRecord:
    """What happened in a step: everything that is drawn or measured comes from these.

    start, end  seconds, on time.perf_counter() or a simulated clock
    rows        (sequence, position of its first token, tokens) of each row
    forward     seconds of the executor; the rest of the step is scheduling, sampling and text
    held, idle  blocks in use, and blocks kept for prefix hits only, after the step
    """

    start: float
    end: float
    rows: tuple[tuple[int, int, int], ...]
    preempted: tuple[int, ...]
    waiting: int
    forward: float
    held: int
    idle: int

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def tokens(self) -> int:
        return sum(count for _, _, count in self.rows)


def record(plan: StepPlan, start: float, end: float, forward: float, waiting: int, pool: BlockPool) -> StepRecord:
    """The record of a step that was just accounted for."""
    return StepRecord(start, end, tuple((row.seq_id, row.start, len(row.token_ids)) for row in plan.rows),
                      tuple(plan.preempted), waiting, forward, pool.num_blocks - pool.available, len(pool.idle))


class Engine:
    """Steps over a scheduler and an executor that share block tables.

    Each answer of a request is a sequence; its new text is left in `request.events`. on_step: called with the record
    of every step.
    """

    def __init__(self, executor: Executor, scheduler: Scheduler,
                 on_step: Callable[[StepRecord], None] | None = None) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self.on_step = on_step
        self.requests: dict[str, Request] = {}
        self._answers: dict[int, tuple[Request, Answer]] = {}  # by sequence
        self._seqs = itertools.count(1)  # never used twice; 0 is for a loop that runs alone

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def add(self, request: Request) -> list[int]:
        """Put a request in the line; returns the ids of its sequences, one an answer.

        Raises ValueError, with nothing changed, for an id in use or a request that could never run.
        """
        if request.request_id in self.requests:
            raise ValueError(f"request '{request.request_id}' is under way: expected a new id")
        ids = [next(self._seqs) for _ in request.answers]
        first, *others = (Sequence(seq_id, list(request.prompt_ids), request.params.max_tokens, request.priority,
                                   request.cache_salt) for seq_id in ids)
        first.forks = others
        self.scheduler.add(first)
        self.requests[request.request_id] = request
        self._answers.update((seq_id, (request, answer)) for seq_id, answer in zip(ids, request.answers))
        return ids

    def abort(self, request_id: str) -> None:
        """Take a request out; its unfinished answers end with finish_reason 'abort' and give their blocks back.

        Raises ValueError for an id that is not there: never added, finished, or aborted already.
        """
        if request_id not in self.requests:
            raise ValueError(f"request '{request_id}' is not under way: expected one that was added and has not ended")
        request = self.requests.pop(request_id)
        for seq_id in [seq_id for seq_id, (owner, _) in self._answers.items() if owner is request]:
            _, answer = self._answers.pop(seq_id)
            answer.finish_reason = "abort"
            if seq_id in self.scheduler.sequences:  # an answer that was still to be forked goes with its parent
                self.scheduler.abort(seq_id)

    def step(self) -> list[Request]:
        """Schedule, execute, sample, account; returns the requests that got tokens.

        Raises PoolExhausted if nobody can run because others hold the blocks. If the executor fails, the requests of
        the step are aborted, and its exception goes on to the caller: the others can still be served.
        """
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        if not plan.rows:
            self._abort_step(plan)
            raise PoolExhausted(f"none of the requests that wait ({self.scheduler.num_waiting}) fits: expected blocks "
                                "to be free, but they are held outside the engine")
        before = time.perf_counter()
        try:
            logits = self.executor.execute(plan)  # [R, V]
            forward = time.perf_counter() - before
            emitted = self._sample(plan, logits)
        except Exception:
            self._abort_step(plan)
            raise
        touched = self._account(plan, emitted)
        if self.on_step is not None:
            self.on_step(record(plan, start, time.perf_counter(), forward, self.scheduler.num_waiting,
                                self.scheduler.tables.pool))
        return touched

    def _abort_step(self, plan: StepPlan) -> None:
        """End whoever a plan that was not carried out leaves without K and V: its rows, and those it swaps out."""
        lost = [row.seq_id for row in plan.rows]
        lost += [seq_id for seq_id in plan.preempted if self.scheduler.sequences[seq_id].state == "swapped"]
        for request_id in dict.fromkeys(self._answers[seq_id][0].request_id for seq_id in lost):
            self.abort(request_id)

    def _sample(self, plan: StepPlan, logits) -> dict[int, int]:
        """Sequence -> its next token. The answers that fork from a row all draw from its logits."""
        places, seqs = [], []
        for place, row in enumerate(row for row in plan.rows if row.samples):
            family = [row.seq_id, *plan.forks.get(row.seq_id, ())]
            seqs += family
            places += [place] * len(family)
        if not seqs:
            return {}
        if plan.forks:
            logits = logits[places]
        return dict(zip(seqs, sampling.sample(logits, [self._answers[seq][1].sampler for seq in seqs])))

    def _account(self, plan: StepPlan, emitted: dict[int, int]) -> list[Request]:
        """Hand the tokens to their answers, then tell the scheduler who has ended."""
        touched: dict[str, Request] = {}
        finished = []
        for seq_id, token in emitted.items():
            request, answer = self._answers[seq_id]
            request.num_cached_tokens = self.scheduler.sequences[seq_id].num_cached_tokens
            request.events.append((answer, answer.take(token)))
            touched[request.request_id] = request
            if answer.finish_reason is not None:
                finished.append(seq_id)
                del self._answers[seq_id]
        self.scheduler.update(plan, {seq_id: [token] for seq_id, token in emitted.items()}, finished)
        for request in touched.values():
            if request.finished:
                del self.requests[request.request_id]
        return list(touched.values())
