"""The check of 3.4. A reader runs it with: minillm check 3.4

A case is a scheduler in some state, into which our own steps have brought it, and one step of the reader's; the last
one is a whole run. Plain integers throughout: what a step makes is always the token 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.cache.blocks import BlockPool
from minillm.cache.prefix import HashIndex
from minillm.cache.radix import RadixIndex
from minillm.cache.tables import BlockTables
from minillm.course.checks import Case, Check, Mistake
from minillm.serving import scheduler
from minillm.serving.scheduler import Scheduler, SchedulerConfig, StepPlan, choose_victim, split_budget

SIZE, ENOUGH = 4, 40  # tokens of a block; steps after which a run is given up
OURS = Scheduler.schedule  # brings a case into its state, while the class's own is forbidden
INDEXES = {"none": lambda pool: None, "hash": HashIndex, "radix": RadixIndex}
NAMES = ("computes:", "samples:", "copies:", "starts:", "preempts:", "then run:", "wait:", "hold blocks:")


class Named(scheduler.Sequence):
    """Printed, also in the message of an error, by the name that the case gives it."""

    def __repr__(self) -> str:
        return f"sequence {name(self.seq_id)}"


@dataclass(frozen=True)
class Come:
    """A request: who, tokens of its prompt, tokens to make; the step before which it comes, its priority, and how many
    tokens its second answer makes, if it has one."""

    name: str
    prompt: int
    makes: int = 5
    at: int = 0
    priority: int = 0
    second: int = 0

    def sequence(self) -> scheduler.Sequence:
        number = 10 * "abcd".index(self.name)
        forks = [Named(number + 2, self._prompt(), self.second)] if self.second else []
        return Named(number + 1, self._prompt(), self.makes, self.priority, forks=forks)

    def _prompt(self) -> list[int]:
        return [1 + "abcd".index(self.name)] * self.prompt  # no two begin alike


def name(seq_id: int) -> str:
    return "abcd"[seq_id // 10] + ("2" if seq_id % 10 == 2 else "")


def names(seq_ids: Sequence[int]) -> str:
    return " and ".join(name(seq_id) for seq_id in seq_ids) or "nobody"


def advance(one: Scheduler, plan: StepPlan) -> None:
    """Carry a plan out and account for it."""
    makes = {row.seq_id for row in plan.rows if row.samples} | {seq for forks in plan.forks.values() for seq in forks}
    ended = [seq_id for seq_id in makes if len((seq := one.sequences[seq_id]).token_ids) + 1
             == seq.prompt_len + seq.max_tokens]
    one.update(plan, {seq_id: [0] for seq_id in makes}, ended)


def prepared(cls: type, come: Sequence[Come], before: int, blocks: int, index: str, limits: dict) -> Scheduler:
    """A scheduler after `before` steps of ours, and with all requests that have come by then."""
    pool = BlockPool(blocks, SIZE)
    one = cls(BlockTables(pool, INDEXES[index](pool)), SchedulerConfig(**{"max_num_seqs": 4, **limits}))
    for step in range(before + 1):
        for request in come:
            if request.at == step:
                one.add(request.sequence())
        if step < before:
            advance(one, OURS(one))
    return one


def positions(row: scheduler.Row) -> str:
    last = row.start + len(row.token_ids) - 1
    if not row.token_ids:
        return f"{name(row.seq_id)} no token"
    return f"{name(row.seq_id)} {row.start}" if last == row.start else f"{name(row.seq_id)} {row.start}-{last}"


def told(one: Scheduler, plan: StepPlan, computes: str | None = None) -> tuple[str, ...]:
    """A plan in words, and who runs, waits and holds blocks after it."""
    rows = sorted(plan.rows, key=lambda row: row.seq_id)
    born = sorted(seq for forks in plan.forks.values() for seq in forks)
    waiting = sorted(seq.seq_id for seq in one.sequences.values() if seq.state in ("waiting", "swapped"))
    held = [f"{name(seq_id)} {len(table)}" for seq_id, table in sorted(one.tables.tables.items())]
    return (" and ".join(map(positions, rows)) or "nothing" if computes is None else computes,
            names([row.seq_id for row in rows if row.samples]), f"{len(plan.copies)} made", names(born),
            names(plan.preempted), names([seq.seq_id for seq in one.running]), names(waiting),
            " and ".join(held) or "nobody")


def one_step(cls: type, come: list[Come], before: int, blocks: int, index: str, limits: dict) -> Any:
    one = prepared(cls, come, 0 if before < 0 else before, blocks, index, limits)
    if before < 0:
        return whole_run(one)
    plan = one.schedule()
    return told(one, plan) if isinstance(plan, StepPlan) else no_plan(plan)


def no_plan(came: Any) -> str | None:
    return None if came is None else f"{type(came).__name__}, no StepPlan"


def whole_run(one: Scheduler) -> Any:
    """All steps until nobody is left, added up; each has to compute something."""
    total, steps, tokens = StepPlan(), 0, 0
    while one.has_unfinished and steps < ENOUGH:
        plan = one.schedule()
        if not isinstance(plan, StepPlan):
            return no_plan(plan)
        if not plan.rows:
            break
        advance(one, plan)
        steps, tokens = steps + 1, tokens + plan.num_tokens
        total.preempted += plan.preempted
        total.copies += plan.copies
    return told(one, total, f"{tokens} tokens in {steps} steps")


def state(come: list[Come], before: int, blocks: int, index: str, limits: dict) -> str:
    """The state of a case, for the reader."""
    one = prepared(Scheduler, come, max(before, 0), blocks, index, limits)
    idle = f", {len(one.tables.pool.idle)} of them idle" if one.tables.pool.idle else ""
    texts = [f"{blocks} block{'s' * (blocks > 1)} of {SIZE} tokens, {one.tables.pool.available} available{idle}"]
    texts += [f"{limit} {value}" for limit, value in limits.items() if limit != "policy"]
    for seq in one.running:
        has = (f"decodes, has {seq.num_computed_tokens} tokens computed" if seq.num_uncomputed_tokens == 1 else
               f"has {seq.num_computed_tokens} of its {seq.prompt_len} prompt tokens computed")
        texts.append(f"{name(seq.seq_id)} {has}, holds {len(one.tables.tables[seq.seq_id])}")
    for seq in sorted(seq for seq in one.sequences.values() if seq.state == "waiting"):
        answers = ", two answers" if seq.forks else ""
        texts.append(f"{name(seq.seq_id)} waits with {seq.prompt_len}{answers}")
    return "; ".join(texts)


def step_cases() -> list[Case]:
    def case(about: str, before: int, *come: Come, blocks: int = 16, index: str = "none", **limits: Any) -> Case:
        args = {"come": list(come), "before": before, "blocks": blocks, "index": index, "limits": limits}
        return Case(about, args, state(**args))

    return [
        case("nobody runs, one waits", 0, Come("a", 3)),
        case("one decodes", 1, Come("a", 3)),
        case("one decodes, and begins a block", 1, Come("a", 4)),
        case("one decodes, one waits", 1, Come("a", 3), Come("b", 5, at=1)),
        case("few tokens in a step: one decodes, one waits", 1, Come("a", 3), Come("b", 9, at=1),
             max_num_batched_tokens=4),
        case("a prompt is under way", 1, Come("a", 10), max_num_batched_tokens=4),
        case("a prompt is under way, in chunks", 1, Come("a", 9), chunk_size=4),
        case("the prompt of two answers is done after this step", 0, Come("a", 6, second=9)),
        case("the prompt of two answers is not done yet", 0, Come("a", 6, second=9), max_num_batched_tokens=4),
        case("two answers share the block that they write into", 1, Come("a", 6, second=9)),
        case("no tokens are left for one prompt", 2, Come("a", 1, 9, second=9), Come("b", 10), Come("c", 10),
             chunk_size=2, max_num_batched_tokens=4),
        case("the last block is needed", 1, Come("a", 4), blocks=2),
        case("what one wants who waits is needed by one who runs", 1, Come("a", 4), Come("b", 5, at=1), blocks=3),
        case("nothing is free, but blocks of an ended one are idle", 1, Come("a", 8, 1), Come("b", 4, 5), blocks=3,
             index="hash"),
        case("two begin a block, one is left", 1, Come("a", 4, 8), Come("b", 4, 8), blocks=3),
        case("three begin a block, none is left", 1, Come("a", 4, 8), Come("b", 4, 8), Come("c", 4, 8), blocks=3),
        case("the last in line has no tokens in this step", 4, Come("a", 1, 9, second=9), Come("b", 10), Come("c", 10),
             chunk_size=2, max_num_batched_tokens=4, blocks=7),
        case("an urgent one waits for a place, and memory is short", 1, Come("a", 4, 8), Come("b", 7, 2, priority=1),
             Come("c", 2, at=1), blocks=3, max_num_seqs=2, policy="priority"),
        case("one runs, alone, and needs a copy of its only block", 1, Come("a", 2, 1, second=3), blocks=1,
             index="radix"),
        case("all steps to the end, three that do not fit together", -1, Come("a", 4), Come("b", 6), Come("c", 3),
             blocks=5),
    ]


def shares(self: Scheduler, limit: bool = True, empty: bool = False) -> dict[scheduler.Sequence, int]:
    """Who computes how many tokens, of those that run."""
    counts = split_budget([seq.num_uncomputed_tokens for seq in self.running], self.config.max_num_batched_tokens,
                          self.config.chunk_size if limit else None)
    return {seq: count for seq, count in zip(self.running, counts) if count or empty}


def takes(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    plan.copies = self.tables.reserve({seq.seq_id: seq.num_computed_tokens + n for seq, n in chosen.items()})


def writes(self: Scheduler, plan: StepPlan, chosen: dict, forks: Callable[..., bool] = lambda seq, row: row.samples,
           row: Callable[..., scheduler.Row] = lambda seq, count: seq.next_row(count)) -> None:
    for seq, count in chosen.items():
        plan.rows.append(row(seq, count))
        if seq.forks and forks(seq, plan.rows[-1]):
            plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]


def memory(self: Scheduler, plan: StepPlan, chosen: dict, *,
           short: Callable[..., bool] = lambda self, chosen: self.blocks_needed(chosen) > self.tables.pool.available,
           victim: Callable[..., scheduler.Sequence] = lambda self, chosen: choose_victim(self.running),
           leaves: Callable[..., Any] = lambda chosen, victim: chosen.pop(victim, None), most: int = ENOUGH,
           once: bool = False) -> None:
    """Preempt until the rest fits; `once`: what is needed is counted before, and never again."""
    needed = self.blocks_needed(chosen)
    while len(plan.preempted) < most and (needed > self.tables.pool.available if once else short(self, chosen)):
        leaving = victim(self, chosen)
        self._preempt(leaving, plan)
        leaves(chosen, leaving)


def admits(self: Scheduler, plan: StepPlan, chosen: dict, *,
           ask: Callable[..., bool] = lambda self, plan: not plan.preempted or not self.running,
           promised: Callable[..., int] = lambda self, chosen: self.blocks_needed(chosen)) -> None:
    if ask(self, plan):
        self._admit(plan, chosen, promised(self, chosen))


def step(*parts: Callable[..., None], begin: Callable[..., dict] = shares) -> type:
    """A scheduler whose step consists of these parts, in this order."""
    def schedule(self: Scheduler) -> StepPlan:
        plan, chosen = StepPlan(), begin(self)
        for part in parts:
            part(self, plan, chosen)
        return plan

    return type("Wrong", (Scheduler,), {"schedule": schedule})


def but(part: Callable[..., None], **switches: Any) -> Callable[..., None]:
    return lambda self, plan, chosen: part(self, plan, chosen, **switches)


def with_memory(**switches: Any) -> type:
    return step(but(memory, **switches), admits, takes, writes)


def with_admission(**switches: Any) -> type:
    return step(memory, but(admits, **switches), takes, writes)


def with_rows(**switches: Any) -> type:
    return step(memory, admits, takes, but(writes, **switches))


def admits_before(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    """Lets others in first, and shares the budget among all who run then."""
    self._admit(plan, {}, 0)
    chosen.update(shares(self))


def computed_at_once(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    for seq, count in chosen.items():
        seq.num_computed_tokens += count
        plan.rows.append(seq.next_row(count))
        if seq.forks and plan.rows[-1].samples:
            plan.forks[seq.seq_id] = [child.seq_id for child in seq.forks]


def only_reserves(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    takes(self, StepPlan(), chosen)


def admitted_apart(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    admits(self, plan, dict(chosen))


def new_tokens_only(self: Scheduler, plan: StepPlan, chosen: dict) -> None:
    """Tells reserve how many tokens the step computes, not how many are computed after it."""
    plan.copies = self.tables.reserve({seq.seq_id: count for seq, count in chosen.items()})


def mistake(name: str, idea: str, like: type) -> Mistake:
    return Mistake(name, idea, like=like)


VICTIM = "choose_victim says who has to leave: the last in line of all that run. The first one must get to its end."
ADMITTED_LATE = "Whoever is let in computes in this very step: admit before blocks are reserved and rows are made."
FIRST_SERVED = "Who runs comes first: share the budget among them, make sure of their blocks, and only then admit."

SCHEDULE = Check(
    "3.4",
    step_cases,
    call=one_step,
    names=NAMES,
    telling=True,
    mistakes=(
        mistake("nobody-let-in", "Who waits is let in by _admit, in every step that preempts nobody.",
                with_admission(ask=lambda self, plan: False)),
        mistake("nobody-let-in", "If nobody runs, somebody has to be let in, or nothing ever happens again.",
                with_admission(ask=lambda self, plan: not plan.preempted and bool(self.running))),
        mistake("only-when-empty", "That is static batching: others may join while some run, at every step.",
                with_admission(ask=lambda self, plan: not self.running)),
        mistake("nobody-left", "If all had to leave, the step would compute nothing: then somebody has to be let in, "
                "preempted or not.", with_admission(ask=lambda self, plan: not plan.preempted)),
        mistake("admits-after-preempting", "Memory has just run out. What a preemption gives back is for those who "
                "run: who is let in on it is the next to be sent back.", with_admission(ask=lambda self, plan: True)),
        mistake("admits-first", FIRST_SERVED, step(admits_before, memory, takes, writes, begin=lambda self: {})),
        mistake("admits-first", FIRST_SERVED,
                step(but(admits, promised=lambda self, chosen: 0), memory, takes, writes)),
        mistake("memory-promised-twice", "_admit has to know how many blocks this step needs already: they are still "
                "counted as available.", with_admission(promised=lambda self, chosen: 0)),
        mistake("too-late-for-the-step", ADMITTED_LATE, step(memory, takes, writes, admits)),
        mistake("too-late-for-the-step", ADMITTED_LATE, step(memory, takes, admits, writes)),
        mistake("too-late-for-the-step", "_admit adds to the chosen that it is given: give it yours, not a copy.",
                step(memory, admitted_apart, takes, writes)),
        mistake("reserves-first", "Count before taking: reserve when the step is sure to fit, after preemption.",
                step(takes, memory, admits, takes, writes)),
        mistake("reserves-first", "Count before taking: reserve when the step is sure to fit, after preemption.",
                step(takes, memory, admits, writes)),
        mistake("never-preempts", "blocks_needed may be more than are available: somebody has to leave then.",
                with_memory(most=0)),
        mistake("one-is-not-enough", "One that leaves may not be enough: go on until the rest fits.",
                with_memory(most=1)),
        mistake("not-counted-again", "Who has left needs nothing any more: count blocks_needed anew each time.",
                with_memory(once=True)),
        mistake("victim-still-chosen", "The victim has given its blocks back: it must not be in chosen any more.",
                with_memory(leaves=lambda chosen, victim: None)),
        mistake("victim-not-chosen", "The victim may have had no tokens in this step, and is not in chosen then: "
                "pop(victim, None).", with_memory(leaves=lambda chosen, victim: chosen.pop(victim))),
        mistake("preempts-too-early", "All that is available may be used: too little is only what is more than that.",
                with_memory(short=lambda self, chosen: self.blocks_needed(chosen) >= self.tables.pool.available)),
        mistake("idle-overlooked", "Idle blocks can be taken too: compare with available, not with what is free.",
                with_memory(short=lambda self, chosen: self.blocks_needed(chosen) > len(self.tables.pool.free))),
        mistake("another-victim", VICTIM, with_memory(victim=lambda self, chosen: self.running[0])),
        mistake("another-victim", VICTIM, with_memory(
            victim=lambda self, chosen: max(self.running, key=lambda seq: len(seq.token_ids)))),
        mistake("another-victim", "Who has no tokens in this step holds blocks all the same: choose among all of "
                "self.running.", with_memory(victim=lambda self, chosen: choose_victim(list(chosen)))),
        mistake("not-reserved", "The blocks are counted, but nobody takes them: self.tables.reserve.",
                step(memory, admits, writes)),
        mistake("copies-lost", "reserve returns the copies to make before anything is written: they are part of the "
                "plan.", step(memory, admits, only_reserves, writes)),
        mistake("new-tokens-only", "reserve is told how many tokens are computed once the step is done, not how many "
                "are new: _totals(chosen).", step(memory, admits, new_tokens_only, writes)),
        mistake("forks-forgotten", "Once the prompt is computed its other answers start: plan.forks.",
                with_rows(forks=lambda seq, row: False)),
        mistake("forks-too-early", "The other answers start from the logits of the prompt's last token: only if the "
                "row samples.", with_rows(forks=lambda seq, row: True)),
        mistake("empty-rows", "Who gets no token in this step has no row in it: leave it out of chosen.",
                step(memory, admits, takes, writes, begin=lambda self: shares(self, empty=True))),
        mistake("all-at-once", "A row has the tokens that the budget allows, which may be fewer than are missing.",
                with_rows(row=lambda seq, count: seq.next_row(seq.num_uncomputed_tokens))),
        mistake("chunk-forgotten", "split_budget has to know config.chunk_size as well.",
                step(memory, admits, takes, writes, begin=lambda self: shares(self, limit=False))),
        mistake("computed-too-early", "The step is only planned: update counts its tokens once they are computed.",
                step(memory, admits, takes, computed_at_once)),
    ),
)

CHECKS = (SCHEDULE,)
