"""A simulated cluster: the engine's own scheduler, on a clock that a function of the step moves (*simulated* figures).

Discrete events: a request arrives, or a replica's step ends. All that happens at one moment is taken in, then every
replica that is idle and has work starts its next step. What the engine does between a plan and its update, run a model
and sample, is replaced by two stand-ins: `step_time` says how long it takes, and a request ends after as many tokens as
its WorkItem says. Nothing else differs, so steps, hits and preemptions are those of the engine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minillm.measure import workload
from minillm.measure.arguments import check_seconds, check_whole
from minillm.measure.metrics import RequestTimes
from minillm.measure.workload import WorkItem
from minillm.serving import engine, router, scheduler
from minillm.serving.engine import StepRecord
from minillm.serving.scheduler import Scheduler, StepPlan
from minillm.serving.step_times import StepTime

STEP_END, ARRIVAL = 0, 1  # at one moment steps end first: who arrives finds what they left
OUTPUT = (workload.SPECIAL,)  # any token will do: no two conversations are alike up to here


@dataclass
class Simulation:
    """What came of a workload. Items go by their place in it; seconds are on the simulated clock, from 0.

    times            item -> when it arrived and when each of its tokens came, in the order in which items ended
    refused          item -> why it could never run; the rest went on without it
    replica          item -> which replica served it
    steps            of each replica: how many steps it took
    busy_seconds     of each replica: how long it was not idle
    request_seconds  the integral over time of the requests in the system: its mean is this over the time looked at
    prompt_tokens    seen by all prefix indexes, each prompt once, and hit_tokens of them found
    records          of each replica, one record a step, if they were asked for
    """

    times: dict[int, RequestTimes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    replica: dict[int, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    busy_seconds: list[float] = field(default_factory=list)
    request_seconds: float = 0.0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    records: list[list[StepRecord]] = field(default_factory=list)

    @property
    def requests(self) -> list[RequestTimes]:
        """For `metrics.summarize`, in the order of the workload."""
        return [self.times[place] for place in sorted(self.times)]

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def simulate(
    items: Sequence[WorkItem],
    make_scheduler: Callable[[], Scheduler],
    step_time: StepTime,
    *,
    replicas: int = 1,
    route: str = "round-robin",
    margin: int = router.MARGIN,
    context: int | None = None,
    seconds_per_swapped_block: float = 0.0,
    vocab: int = 32000,
    seed: int = 0,
    record_steps: bool = False,
) -> Simulation:
    """Serve a workload to its end on `replicas` equal replicas, each with a scheduler of its own behind one router.

    step_time(query_lens, context_lens) in seconds; every block swapped out or in adds to it. `context`: tokens of the
    longest sequence, prompt and output (None: the pool is the only limit). route, margin: see `Router`. vocab, seed: of
    the prompts' token ids (`workload.prompt_ids`). The same call gives the same simulation.

    A request that can never run is refused, with all that follow it. Raises ValueError for items that fail
    `workload.check`, a route that is none, or a number that is none or out of its range.
    """
    workload.check(items)
    check_whole("replicas", replicas, 1)
    if context is not None:
        check_whole("context", context, 1)
    check_whole("vocab", vocab, workload.SPECIAL + 1, why=f": {workload.SPECIAL} ids are left alone")
    check_seconds("seconds_per_swapped_block", seconds_per_swapped_block)
    cluster = _Cluster(items, [make_scheduler() for _ in range(replicas)], step_time, context,
                       seconds_per_swapped_block, vocab, seed, record_steps)
    cluster.router = router.Router(route, cluster.schedulers, margin)
    return cluster.run()


class _Cluster:
    """The state of a simulation: events to come, plans under way, and the tokens that every request has got."""

    def __init__(self, items: Sequence[WorkItem], schedulers: list[Scheduler], step_time: StepTime,
                 context: int | None, per_block: float, vocab: int, seed: int, record_steps: bool) -> None:
        self.items, self.schedulers, self.step_time = items, schedulers, step_time
        self.context, self.per_block, self.vocab, self.seed = context, per_block, vocab, seed
        self.record_steps = record_steps
        self.router: router.Router
        count = len(schedulers)
        self.found = Simulation(steps=[0] * count, busy_seconds=[0.0] * count, records=[[] for _ in range(count)])
        self.followers: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            if item.follows is not None:
                self.followers.setdefault(item.follows, []).append(place)
        self.events = [(item.arrival, ARRIVAL, place) for place, item in enumerate(items) if item.follows is None]
        heapq.heapify(self.events)
        self.under_way: list[tuple[StepPlan, float] | None] = [None] * count  # of each replica, with its start
        self.arrivals: dict[int, float] = {}
        self.token_times: dict[int, list[float]] = {}
        self.histories: dict[int, list[int]] = {}  # of a follow-up: what its conversation has said so far

    def run(self) -> Simulation:
        now = 0.0
        while self.events:
            before, now = now, self.events[0][0]
            self.found.request_seconds += (now - before) * len(self.token_times)
            while self.events and self.events[0][0] == now:
                _, kind, number = heapq.heappop(self.events)
                (self._arrive if kind == ARRIVAL else self._end)(number, now)
            for replica, plan in enumerate(self.under_way):
                if plan is None and self.schedulers[replica].has_unfinished:
                    self._start(replica, now)
        for one in self.schedulers:
            self.found.prompt_tokens += one.tables.stats.prompt_tokens
            self.found.hit_tokens += one.tables.stats.hit_tokens
        return self.found

    def _arrive(self, place: int, now: float) -> None:
        """Send a request to its replica, or refuse it."""
        item, history = self.items[place], self.histories.pop(place, ())
        try:
            self._check_fits(item.tokens_after(len(history)), item.output_tokens)
        except ValueError as error:
            self._refuse(place, str(error))
            return
        prompt = workload.prompt_ids(place, item, self.vocab, self.seed, history)
        replica = self.router.choose(prompt)
        self.router.sent(replica, len(prompt) + item.output_tokens)
        self.schedulers[replica].add(scheduler.Sequence(place, prompt, item.output_tokens, item.priority))
        self.found.replica[place] = replica
        self.arrivals[place], self.token_times[place] = now, []

    def _check_fits(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raises ValueError for a request that no replica could ever run; they are all equal."""
        if self.context is not None and prompt_tokens + output_tokens > self.context:
            raise ValueError(f"request has {prompt_tokens} prompt tokens and {output_tokens} new ones: expected at "
                             f"most {self.context}, the context")
        self.schedulers[0].check_fits(prompt_tokens, output_tokens)

    def _refuse(self, place: int, why: str) -> None:
        left = [(place, why)]
        while left:
            place, why = left.pop()
            self.found.refused[place] = why
            left += [(later, f"item {place}, which it follows, was refused") for later in self.followers.get(place, ())]

    def _start(self, replica: int, now: float) -> None:
        """Plan a step; its end is an event to come."""
        plan = self.schedulers[replica].schedule()
        if not plan.rows:
            raise RuntimeError(f"replica {replica} has work and an empty plan: a scheduler's plan has rows")
        query_lens = [len(row.token_ids) for row in plan.rows]
        context_lens = [row.start + new for row, new in zip(plan.rows, query_lens)]
        seconds = self.step_time(query_lens, context_lens)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"step time is {seconds}: expected seconds, at least 0")
        seconds += self.per_block * (len(plan.swaps_out) + len(plan.swaps_in))
        self.under_way[replica] = plan, now
        heapq.heappush(self.events, (now + seconds, STEP_END, replica))

    def _end(self, replica: int, now: float) -> None:
        """Give each row that samples its token, and account for the step."""
        plan, start = self.under_way[replica]
        items, token_times = self.items, self.token_times
        emitted, finished = {}, []
        for place, _, _, samples in plan.rows:
            if samples:
                emitted[place] = OUTPUT
                times = token_times[place]
                times.append(now)
                if len(times) == items[place].output_tokens:
                    finished.append(place)
        sequences = [self.schedulers[replica].sequences[place] for place in finished]
        self.schedulers[replica].update(plan, emitted, finished)
        self._account(replica, plan, start, now)
        for sequence in sequences:
            self._finish(replica, sequence, now)

    def _finish(self, replica: int, sequence: scheduler.Sequence, now: float) -> None:
        """Keep a request's times; whoever follows it arrives after thinking."""
        place = sequence.seq_id
        self.found.times[place] = RequestTimes(self.arrivals.pop(place), tuple(self.token_times.pop(place)),
                                               sequence.prompt_len)
        self.router.ended(replica, len(sequence.token_ids))
        for later in self.followers.get(place, ()):
            self.histories[later] = sequence.token_ids
            heapq.heappush(self.events, (now + self.items[later].arrival, ARRIVAL, later))

    def _account(self, replica: int, plan: StepPlan, start: float, now: float) -> None:
        self.under_way[replica] = None
        self.found.steps[replica] += 1
        self.found.busy_seconds[replica] += now - start
        self.found.preemptions += len(plan.preempted)
        if self.record_steps:
            one = self.schedulers[replica]
            self.found.records[replica].append(
                engine.record(plan, start, now, now - start, one.num_waiting, one.tables.pool))
