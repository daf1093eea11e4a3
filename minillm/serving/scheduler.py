"""Which tokens of which requests the next step computes: continuous batching, decided anew at every step.

Plain integers. The scheduler owns the block tables, touches no tensor, and reads no clock that is not handed to it, so
the same object drives the engine and the simulator. The order of a step:

    schedule   1. every running sequence asks for its next tokens: one if it decodes, a chunk if its prompt is not done
               2. blocks_needed > available?   preempt the last in line, until the rest fits
               3. nobody preempted?            admit from the waiting line: a slot, tokens left in the budget, blocks
               4. reserve the blocks           what a copy-on-write must copy comes back here
    execute       swap out, copy, swap in, forward pass: K and V of the step are written, logits come
    update     5. the tokens of the step count as computed, new tokens are appended
               6. forks, full blocks registered, the finished leave and give their blocks back

A block is counted (2), taken (4), written (execute) and registered (6) in that order and never earlier: registering at
4 would let another request read K and V that nobody has written yet.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import NamedTuple

from minillm.cache import blocks
from minillm.cache.tables import BlockTables

POLICIES = {
    "fcfs": lambda seq: 0,
    "shortest-prompt": lambda seq: seq.prompt_len,
    "priority": lambda seq: seq.priority,
}
"""What comes before the order of arrival in the line: lower goes first."""
PREEMPTIONS = ("recompute", "swap")


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a step; names are vLLM's where it has them.

    max_num_seqs            sequences that run at once
    max_num_batched_tokens  new tokens of a step at most (its budget): what decodes leave of it goes to prompts
    chunk_size              prompt tokens of one sequence in a step at most; None: as far as the budget reaches
    policy                  who goes first: 'fcfs', 'shortest-prompt', 'priority' (a lower number is more urgent)
    preemption              what becomes of K and V of who has to leave: 'recompute' (dropped) or 'swap' (to the host)
    watermark               share of the blocks that admission leaves free, so that those who run can grow
    Raises ValueError for a value out of range, an unknown name, or a budget below max_num_seqs: a decode would stall.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    chunk_size: int | None = None
    policy: str = "fcfs"
    preemption: str = "recompute"
    watermark: float = 0.01

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "chunk_size"):
            value = getattr(self, name)
            if name == "chunk_size" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"max_num_batched_tokens is {self.max_num_batched_tokens}: expected at least "
                             f"max_num_seqs ({self.max_num_seqs}), a token for each that decodes")
        for name, known in (("policy", tuple(POLICIES)), ("preemption", PREEMPTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}: expected one of {', '.join(known)}")
        if not isinstance(self.watermark, (int, float)) or not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark!r}: expected 0 to less than 1")


@dataclass(eq=False)
class Sequence:
    """One answer under way. `token_ids`: the prompt and what has been generated; the first num_computed_tokens of them
    have their K and V in the cache.

    forks: sequences that go on from the same prompt with tokens of their own, once it is computed. extra: keeps apart
    texts that must not share blocks. order: its place in the line (policy, arrival, answer), given by `Scheduler.add`.
    """

    seq_id: int
    token_ids: list[int]
    max_tokens: int
    priority: int = 0
    extra: str = ""
    forks: list[Sequence] = field(default_factory=list)
    prompt_len: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    order: tuple[int, int, int] = (0, 0, 0)
    state: str = "unborn"  # then waiting, running, swapped, done
    host_blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.token_ids)

    def __lt__(self, other: Sequence) -> bool:
        return self.order < other.order

    @property
    def num_uncomputed_tokens(self) -> int:
        """1 while it decodes: the newest token, whose K and V the next step writes."""
        return len(self.token_ids) - self.num_computed_tokens

    def next_row(self, count: int) -> Row:
        """The next `count` tokens to compute."""
        start, end = self.num_computed_tokens, self.num_computed_tokens + count
        return Row(self.seq_id, self.token_ids[start:end], start, end == len(self.token_ids))


class Row(NamedTuple):
    """One sequence's part of a step: these tokens, of which the first stands at position `start`.

    samples: whether its last token is the last one known, so that its logits give the next.
    """

    seq_id: int
    token_ids: list[int]
    start: int
    samples: bool


@dataclass
class StepPlan:
    """What a step does, in this order: swap out, copy, swap in, then the forward pass over `rows`.

    swaps_out (block, host block), copies (from, to) and swaps_in (host block, block) name whole blocks. forks: parent
    -> the sequences that take its logits too. preempted: ids of those that had to leave in this step.
    """

    rows: list[Row] = field(default_factory=list)
    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    forks: dict[int, list[int]] = field(default_factory=dict)
    preempted: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


def split_budget(uncomputed: SequenceOf[int], budget: int, chunk_size: int | None = None) -> list[int]:
    """How many tokens each sequence gets in a step, at most `budget` in all (chunked prefill, Agrawal et al. 2024).

    uncomputed [n] in the order of the line, each at least 1: a sequence with 1 decodes, one with more has a prompt to
    work off. Decodes are served first, one token each (the budget is large enough for all of them), so that no prompt
    makes them wait (stall-free); what is left goes to prompts in order, at most chunk_size each (None: no such limit),
    and what one does not need goes on to the next. Returns a count for each, 0 for one that gets nothing.
    """
    counts = [1 if tokens == 1 else 0 for tokens in uncomputed]
    left = budget - sum(counts)
    for place, tokens in enumerate(uncomputed):
        if tokens > 1:
            counts[place] = min(tokens, left, chunk_size or tokens)
            left -= counts[place]
    return counts


def choose_victim(running: SequenceOf[Sequence]) -> Sequence:
    """Whom to preempt: the last in line, which is the one with the greatest `order`, wherever it stands in `running`.

    `order` is (policy, arrival, answer) and never changes: who was sent back and returned has kept its place. Whoever
    is first is never chosen while others run, so it always ends, and then the next one is first: liveness.
    """
    return max(running, key=lambda seq: seq.order)


class Scheduler:
    """Iteration-level scheduling (Orca, Yu et al. 2022) over paged K and V (vLLM, Kwon et al. 2023).

    `tables` is shared with the cache that holds the tensors. host_blocks: blocks of host memory, for preemption by
    swapping. `add` and `abort` come between steps; a step is `schedule`, then `update`.
    """

    def __init__(self, tables: BlockTables, config: SchedulerConfig | None = None, host_blocks: int = 0) -> None:
        self.tables = tables
        self.config = config or SchedulerConfig()
        if (self.config.preemption == "swap") != (host_blocks > 0):
            raise ValueError(f"host_blocks is {host_blocks} with preemption '{self.config.preemption}': expected some "
                             "with 'swap', none without")
        self.host = blocks.BlockPool(host_blocks, tables.pool.block_size) if host_blocks else None
        self.sequences: dict[int, Sequence] = {}  # all that have not ended
        self.running: list[Sequence] = []  # in the order of the line
        self.num_waiting = 0
        self._line: list[Sequence] = []  # a heap of those that wait, and of some that were aborted since
        self._slots = 0  # taken by the running, with room for the forks to come
        self._arrivals = 0

    @property
    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    def add(self, seq: Sequence) -> None:
        """Put a new sequence in the line, with its forks.

        Raises ValueError, with nothing changed, for one without tokens, an id in use, more answers than max_num_seqs,
        or more tokens than the whole pool has room for: it could never run.
        """
        family = (seq, *seq.forks)
        if not seq.token_ids:
            raise ValueError(f"sequence {seq.seq_id} has no tokens: expected at least one")
        for one in family:
            if one.seq_id in self.sequences or one.seq_id in self.tables.tables:
                raise ValueError(f"sequence {one.seq_id} is there already: expected a new id")
        self.check_fits(seq.prompt_len, seq.max_tokens, len(family))
        for index, one in enumerate(family):
            one.order = (POLICIES[self.config.policy](seq), self._arrivals, index)
            self.sequences[one.seq_id] = one
        self._arrivals += 1
        self._wait(seq, "waiting")

    def check_fits(self, prompt_tokens: int, max_tokens: int, n: int = 1) -> None:
        """Raises ValueError for a request that could never run: too many answers or too long, each by itself."""
        if n > self.config.max_num_seqs:
            raise ValueError(f"n is {n}: expected at most max_num_seqs ({self.config.max_num_seqs})")
        pool = self.tables.pool
        needed = pool.blocks_for(prompt_tokens + max_tokens - 1)  # the last token's K and V are never written
        if needed > pool.num_blocks:
            raise ValueError(f"request needs {needed} KV blocks for {prompt_tokens} prompt tokens and {max_tokens} new "
                             f"ones: expected at most {pool.num_blocks}, the whole pool")

    def abort(self, seq_id: int) -> None:
        """Take a sequence out, wherever it is, with the forks it still has to make; every block comes back.

        Raises ValueError for an id that is not there: never added, or ended.
        """
        seq = self.sequences.get(seq_id)
        if seq is None or seq.state == "unborn":
            raise ValueError(f"sequence {seq_id} is not under way: expected one that was added and has not ended")
        if seq.state == "running":
            self._stop(seq)
        else:
            self.num_waiting -= 1  # it leaves the heap when it comes to its top
        if seq.state == "swapped":
            self.host.release(seq.host_blocks)
        for one in (seq, *seq.forks):
            one.state = "done"
            del self.sequences[one.seq_id]

    def schedule(self) -> StepPlan:
        """Decide the next step: who computes how many tokens, after which copies and swaps.

        Its rows are never empty while anything is under way, unless somebody else holds the pool's blocks. The order of
        a step is drawn at the top of minillm/serving/scheduler.py; `chosen` below is {sequence: tokens in this step}.

        split_budget           shares config.max_num_batched_tokens among self.running, by their num_uncomputed_tokens
                               and config.chunk_size; who gets 0 is not in chosen
        self.blocks_needed     (chosen) -> blocks that the step takes; self.tables.pool.available are there
        choose_victim          (self.running) -> who has to leave
        self._preempt          (victim, plan): out of self.running and back in the line, its blocks given back; notes
                               itself in the plan. chosen is yours: the victim is still in it
        self._admit            (plan, chosen, blocks needed): lets in who fits, adds them to chosen and self.running.
                               Call it unless somebody was preempted in this step; if nobody runs any more, even then
        self.tables.reserve    ({seq_id: tokens computed once the step is done}, which _totals(chosen) gives): takes the
                               blocks, returns the copies to make: plan.copies
        seq.next_row           (count) -> its Row, for plan.rows
        plan.forks             {seq_id: ids of its forks} for each sequence with forks (seq.forks) whose row samples
        """
        plan = StepPlan()
        uncomputed = [seq.num_uncomputed_tokens for seq in self.running]
        counts = split_budget(uncomputed, self.config.max_num_batched_tokens, self.config.chunk_size)
        chosen = {seq: count for seq, count in zip(self.running, counts) if count}
        while (needed := self.blocks_needed(chosen)) > self.tables.pool.available:
            victim = choose_victim(self.running)
            self._preempt(victim, plan)
            chosen.pop(victim, None)
        if not plan.preempted or not self.running:
            self._admit(plan, chosen, needed)
        plan.copies = self.tables.reserve(_totals(chosen))
        for seq, count in chosen.items():
            plan.rows.append(seq.next_row(count))
            if seq.forks and plan.rows[-1].samples:
                plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]
        return plan

    def blocks_needed(self, chosen: Mapping[Sequence, int]) -> int:
        """Blocks to take from the pool before these sequences can compute so many more tokens, copies included."""
        return self.tables.blocks_needed(_totals(chosen))

    def update(self, plan: StepPlan, emitted: Mapping[int, SequenceOf[int]], finished: Collection[int] = ()) -> None:
        """Account for a step that was carried out: `emitted` new tokens of each sequence, and which have ended.

        A sequence of plan.rows that samples, and each of plan.forks, has an entry in `emitted`.
        """
        for row in plan.rows:
            seq = self.sequences[row.seq_id]
            seq.num_computed_tokens = self.tables.lengths[row.seq_id] = row.start + len(row.token_ids)
            if seq.num_computed_tokens // self.tables.pool.block_size > row.start // self.tables.pool.block_size:
                self.tables.register(row.seq_id, seq.token_ids)
            if row.seq_id in plan.forks:
                self._fork(seq)
        for seq_id, tokens in emitted.items():
            self.sequences[seq_id].token_ids += tokens
        for seq_id in finished:
            seq = self.sequences.pop(seq_id)
            self.tables.register(seq_id, seq.token_ids, closing=True)
            self._stop(seq)
            seq.state = "done"

    def _admit(self, plan: StepPlan, chosen: dict[Sequence, int], promised: int) -> None:
        """Let sequences in from the line, in order, while there are slots, budget and blocks; nobody overtakes.

        promised: blocks that the running take in this step. What they still need for the rest of their prompts is
        added, so that nobody is let in on memory that is spoken for.
        """
        pool, left = self.tables.pool, self.config.max_num_batched_tokens - sum(chosen.values())
        for seq in self.running:
            if seq.num_uncomputed_tokens > 1:
                reached = seq.num_computed_tokens + chosen.get(seq, 0)
                promised += pool.blocks_for(len(seq.token_ids)) - pool.blocks_for(reached)
        while left > 0 and (seq := self._head()) and self._slots + 1 + len(seq.forks) <= self.config.max_num_seqs:
            reserve = int(self.config.watermark * pool.num_blocks) if self.running else 0
            fits = self._blocks_to_open(seq) <= pool.available - promised - reserve
            if not fits and (self.running or pool.blocks_for(len(seq.token_ids)) > pool.available):
                return
            heapq.heappop(self._line)
            self._open(seq, plan, fits)
            (chosen[seq],) = split_budget([seq.num_uncomputed_tokens], left, self.config.chunk_size)
            left -= chosen[seq]
            promised += self.tables.blocks_needed({seq.seq_id: len(seq.token_ids)})

    def _head(self) -> Sequence | None:
        """Who is first in the line."""
        while self._line and self._line[0].state == "done":
            heapq.heappop(self._line)
        return self._line[0] if self._line else None

    def _blocks_to_open(self, seq: Sequence) -> int:
        """Blocks that the pool gives up to hold all tokens known of a waiting sequence; prefix hits held by others are
        free."""
        most = self.tables.pool.blocks_for(len(seq.token_ids))
        return most if seq.state == "swapped" else self.tables.blocks_to_start(seq.token_ids, seq.extra)

    def _open(self, seq: Sequence, plan: StepPlan, fits: bool) -> None:
        """Give a sequence its block table: swapped in, or started on what the prefix index knows."""
        if seq.state == "swapped":
            restored = self.tables.restore(seq.seq_id, seq.num_computed_tokens, seq.extra)
            plan.swaps_in += zip(seq.host_blocks, restored)
            self.host.release(seq.host_blocks)
            seq.host_blocks = []
        else:
            hit = self.tables.start(seq.seq_id, seq.token_ids, seq.extra, again=seq.num_preemptions > 0)
            if not fits:  # alone, and only for want of the block that a copy of a half-known one would take
                hit -= hit % self.tables.pool.block_size
                self.tables.truncate(seq.seq_id, hit)
            seq.num_computed_tokens = hit
            if seq.num_preemptions == 0:
                seq.num_cached_tokens = hit
        seq.state = "running"
        self.num_waiting -= 1
        self._run(seq)

    def _preempt(self, seq: Sequence, plan: StepPlan) -> None:
        """Send a running sequence back to the line; its K and V go to the host if there is room, else they are dropped
        and computed again, its new tokens among them."""
        written = self.tables.tables[seq.seq_id][: self.tables.pool.blocks_for(seq.num_computed_tokens)]
        swap = self.host is not None and 0 < len(written) <= self.host.available
        if swap:
            seq.host_blocks = self.host.allocate(len(written))
            plan.swaps_out += zip(written, seq.host_blocks)
        else:
            seq.num_computed_tokens = 0
        self._stop(seq)
        seq.num_preemptions += 1
        plan.preempted.append(seq.seq_id)
        self._wait(seq, "swapped" if swap else "waiting")

    def _fork(self, seq: Sequence) -> None:
        """The prompt is computed: its other answers start to run, on the same blocks."""
        for child in seq.forks:
            self.tables.fork(seq.seq_id, child.seq_id)
            child.num_computed_tokens, child.num_cached_tokens = seq.num_computed_tokens, seq.num_cached_tokens
            child.state = "running"
            insort(self.running, child)  # their slots are taken already
        seq.forks = []

    def _run(self, seq: Sequence) -> None:
        insort(self.running, seq)
        self._slots += 1 + len(seq.forks)

    def _stop(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._slots -= 1 + len(seq.forks)
        self.tables.free(seq.seq_id)

    def _wait(self, seq: Sequence, state: str) -> None:
        seq.state = state
        self.num_waiting += 1
        heapq.heappush(self._line, seq)


def _totals(chosen: Mapping[Sequence, int]) -> dict[int, int]:
    """Sequence id -> tokens with K and V once the step is done."""
    return {seq.seq_id: seq.num_computed_tokens + count for seq, count in chosen.items()}
