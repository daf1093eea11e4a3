"""Step 3, Static, dynamic and continuous batching: the answers, as the package itself has them.

Generated from the package's source by minillm.course.build; nothing here is edited by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

from minillm.course.hunts import BLOCK
from minillm.serving import scheduler
from minillm.serving.scheduler import Sequence, StepPlan, _totals

# ----------------------------------------------------------------------------
# 3.1 What a static batch does with its rows
# 5 minutes, difficulty 1 of 3, our answer has 3 lines
# Teaches: The longest answer decides how long a static batch takes, and everybody else's row runs
#   on beside it.
# Lesson: notebooks/03_batching.ipynb, section "Static batching: the longest decides"
#
# Notice: With equal lengths nothing is wasted: the waste is in the spread. One long answer among
#   many short ones brings the share close to 1 / n, however well the machine computes.


def slot_efficiency(lengths: SequenceOf[int]) -> float:
    """The share of a static batch's row-steps that make a token somebody wants.

    lengths [n]: output tokens of each answer, at least 1, in any order. The batch takes as many steps as its longest
    answer, and in each of them every one of its n rows is computed: a row-step is one row in one step.
    """
    wanted = sum(lengths)
    row_steps = len(lengths) * max(lengths)
    return wanted / row_steps


# ----------------------------------------------------------------------------
# 3.2 The dynamic batcher
# 15 minutes, difficulty 2 of 3, our answer has 4 lines
# Teaches: What dynamic batching decides, and all that it decides: when a batch starts, and who is
#   in it.
# Lesson: notebooks/03_batching.ipynb, section "Dynamic batching: how long to wait"
#
# Notice: A busy machine makes the timeout idle: while it computes, more come than it would have
#   waited for. Under load the batches fill by themselves, and what hurts then is waiting for the
#   longest.


def next_batch(arrivals: SequenceOf[float], free_at: float, max_size: int, timeout: float) -> tuple[float, int]:
    """When the next batch starts, and with how many requests: dynamic batching (as model servers do it).

    arrivals: when each request that is not served yet comes, ascending, seconds, at least one; those to come are among
    them. The batch starts as soon as the machine is free (free_at) and either max_size requests are there or the first
    of them has waited `timeout` seconds. It takes all that are there by then (who comes at that very moment is in), the
    first come first, max_size at most. Returns the moment, in the same seconds as arrivals, and the number.
    """
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)


# ----------------------------------------------------------------------------
# 3.3 Who gets how many tokens of a step
# 15 minutes, difficulty 2 of 3, our answer has 7 lines
# Teaches: Chunked prefill: a long prompt goes in pieces, so that steps stay short and whoever
#   decodes never waits.
# Lesson: notebooks/03_batching.ipynb, section "A long prompt arrives: chunked prefill"
#
# Notice: The budget bounds how long a step takes, and with it the gap between two tokens of
#   everybody who decodes. What a prompt pays for that is its own first token, some steps later.


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


# ----------------------------------------------------------------------------
# 3.4 A step of continuous batching
# 25 minutes, difficulty 3 of 3, our answer has 16 lines
# Teaches: The order of a step: who runs is served, memory is made sure of, others are let in, then
#   it is taken.
# Lesson: notebooks/03_batching.ipynb, section "Continuous batching: decide anew at every step"
#
# Notice: Nothing is taken before all is decided, so nothing has to be undone. One sequence may be
#   in the line, run, be sent back and run again: the rows of a step never show it, they are tokens
#   that are next.


class SchedulerSchedule(scheduler.Scheduler):
    """scheduler.Scheduler with this one method written by you."""

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


# Further: what follows does not count against your progress.


# ----------------------------------------------------------------------------
# 3.5 Whom to preempt
# 5 minutes, difficulty 1 of 3, our answer has 1 line
# Teaches: Why it is the last in line, and not who frees the most: only so does the first one always
#   get to its end.
# Lesson: notebooks/03_batching.ipynb, section "When memory runs out: preemption"
#
# Notice: Max by a place that is kept for life. By ids given anew, or by who came back last, a
#   request that was sent back would be sent back again: vLLM had that (issue 41951).


def choose_victim(running: SequenceOf[Sequence]) -> Sequence:
    """Whom to preempt: the last in line, which is the one with the greatest `order`, wherever it stands in `running`.

    `order` is (policy, arrival, answer) and never changes: who was sent back and returned has kept its place. Whoever
    is first is never chosen while others run, so it always ends, and then the next one is first: liveness.
    """
    return max(running, key=lambda seq: seq.order)


# ----------------------------------------------------------------------------
# 3.6 Bug hunt: a hit is not free
# 15 minutes, difficulty 2 of 3, our answer has 1 line
# Teaches: An idle block is counted as available and as known. Whoever takes it as known makes it
#   unavailable.
# Lesson: notebooks/03_batching.ipynb, section "When memory runs out: preemption"
#
# Notice: With no hits, or with blocks that somebody holds already, the count is right, and so is
#   every test that has only these. Our scheduler asks BlockTables.blocks_to_start, which adds the
#   idle ones.


def let_in_with_a_bug(num_blocks: int, left: list[int], arriving: list[list[int]]) -> list[int]:
    """Which of the prompts in `arriving` (0: the first, …) are let in together, in a pool of num_blocks blocks.

    Nobody runs. A request that has ended left its tokens, `left`: its full blocks are idle, two tokens each. A prompt
    begins with those that it begins with, which others may share; the last token is always computed. All that are let
    in are then computed in one step. There is one mistake in it.
    """
    available = num_blocks  # the free ones and the idle ones
    places: list[int] = []
    for place, prompt in enumerate(arriving):
        known = 0  # blocks that need no computing
        while (end := (known + 1) * BLOCK) <= min(len(left), len(prompt) - 1) and prompt[:end] == left[:end]:
            known += 1
        needed = -(-len(prompt) // BLOCK) - known
        if needed > available:
            break  # nobody overtakes
        available -= needed
        places.append(place)
    return places


def smallest_crowd() -> tuple[int, list[int], list[list[int]]]:
    """(num_blocks, left, arriving) for let_in_with_a_bug, which lets in prompts that need more blocks than there are.

    A block that several of them share is needed once. Each prompt has a token at least, and alone it would fit, as did
    what was left. Smallest: the fewest tokens in left and arriving together.
    """
    return 2, [1, 2], [[1, 2, 3], [9]]
