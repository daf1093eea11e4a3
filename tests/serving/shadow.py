"""A stand-in for a model and its memory: every slot remembers the text it was written for, and the next token is a
function of the whole text. A scheduler that loses, mixes up or reads too early gives other tokens than asked alone."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field

from minillm.serving.scheduler import Scheduler, Sequence, StepPlan
from tests.cache.invariants import check_pool

VOCAB = 7


def next_token(text: list[int], answer: int) -> int:
    return zlib.crc32(repr((answer, text)).encode()) % VOCAB


def alone(prompt: list[int], answer: int, max_tokens: int) -> list[int]:
    """What a request gives when nobody else is there."""
    text = list(prompt)
    for _ in range(max_tokens):
        text.append(next_token(text, answer))
    return text[len(prompt) :]


@dataclass
class Shadow:
    """Carries out plans on slots that hold (extra, text) instead of K and V; checks every rule of a step."""

    scheduler: Scheduler
    answers: dict[int, int] = field(default_factory=dict)  # seq -> which answer of its request
    results: dict[int, list[int]] = field(default_factory=dict)
    log: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        pool, host = self.scheduler.tables.pool, self.scheduler.host
        self.slots = {block: [None] * pool.block_size for block in range(pool.num_blocks)}
        self.host = {block: [] for block in range(host.num_blocks if host else 0)}

    def add(self, seq_id: int, prompt: list[int], max_tokens: int, n: int = 1, **how) -> list[int]:
        """Queue a request of n answers; their ids are seq_id … seq_id + n - 1."""
        forks = [Sequence(seq_id + i, list(prompt), max_tokens, **how) for i in range(1, n)]
        self.scheduler.add(Sequence(seq_id, list(prompt), max_tokens, forks=forks, **how))
        self.answers.update({seq_id + i: i for i in range(n)})
        return list(range(seq_id, seq_id + n))

    def step(self) -> StepPlan:
        decoding = {seq.seq_id for seq in self.scheduler.running if seq.num_uncomputed_tokens == 1}
        plan = self.scheduler.schedule()
        self.log.append(plan)
        self._check_plan(plan, decoding)
        self._move(plan)
        emitted = {}
        for row in plan.rows:
            text = self._write(row)
            if row.samples:
                for seq_id in (row.seq_id, *plan.forks.get(row.seq_id, ())):
                    emitted[seq_id] = [next_token(text, self.answers[seq_id])]
        sequences = {seq_id: self.scheduler.sequences[seq_id] for seq_id in emitted}
        finished = [seq_id for seq_id, seq in sequences.items()
                    if len(seq.token_ids) + 1 == seq.prompt_len + seq.max_tokens]
        self.scheduler.update(plan, emitted, finished)
        for seq_id in finished:
            self.results[seq_id] = sequences[seq_id].token_ids[sequences[seq_id].prompt_len :]
        self.check()
        return plan

    def check(self) -> None:
        """What holds between steps: every block is accounted for, every slot in use holds its own text."""
        tables = self.scheduler.tables
        check_pool(tables.pool, Counter(block for table in tables.tables.values() for block in table))
        assert set(tables.tables) == {seq.seq_id for seq in self.scheduler.running}
        assert self.scheduler.running == sorted(self.scheduler.running)
        assert len(self.scheduler.running) <= self.scheduler.config.max_num_seqs
        states = Counter(seq.state for seq in self.scheduler.sequences.values())
        assert self.scheduler.num_waiting == states["waiting"] + states["swapped"]
        for seq in self.scheduler.running:
            assert tables.lengths[seq.seq_id] == seq.num_computed_tokens < len(seq.token_ids)
            self._read(seq.seq_id, seq.token_ids[: seq.num_computed_tokens])

    def _check_plan(self, plan: StepPlan, decoding: set[int]) -> None:
        config = self.scheduler.config
        assert plan.rows, "a step does nothing while requests are under way"
        assert plan.num_tokens <= config.max_num_batched_tokens
        rows = {row.seq_id: row for row in plan.rows}
        assert len(rows) == len(plan.rows)
        if not plan.preempted:  # stall-free
            assert all(len(rows[seq_id].token_ids) == 1 for seq_id in decoding)
        for row in plan.rows:
            assert 1 <= len(row.token_ids) <= (config.chunk_size or config.max_num_batched_tokens)

    def _move(self, plan: StepPlan) -> None:
        for block, host in plan.swaps_out:
            self.host[host] = list(self.slots[block])
        copied = [(target, list(self.slots[source])) for source, target in plan.copies]
        assert len({target for target, _ in copied}) == len(copied)
        self.slots.update(copied)
        for host, block in plan.swaps_in:
            self.slots[block] = list(self.host[host])

    def _write(self, row) -> list[int]:
        tables, size = self.scheduler.tables, self.scheduler.tables.pool.block_size
        seq = self.scheduler.sequences[row.seq_id]
        for place, token in enumerate(row.token_ids, start=row.start):
            block = tables.tables[row.seq_id][place // size]
            assert not tables.pool.is_shared(block), "a shared block is written"
            assert seq.token_ids[place] == token
            self.slots[block][place % size] = (seq.extra, tuple(seq.token_ids[: place + 1]))
        return self._read(row.seq_id, seq.token_ids[: row.start + len(row.token_ids)])

    def _read(self, seq_id: int, text: list[int]) -> list[int]:
        tables, size = self.scheduler.tables, self.scheduler.tables.pool.block_size
        extra = self.scheduler.sequences[seq_id].extra
        for place in range(len(text)):
            held = self.slots[tables.tables[seq_id][place // size]][place % size]
            assert held == (extra, tuple(text[: place + 1])), f"sequence {seq_id}, token {place}: {held}"
        return text
