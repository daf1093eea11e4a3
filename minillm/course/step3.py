"""Step 3, batches that are fixed once they start, and batches that change at every step."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Step, Target

STEP = Step(3, "batching", "Static, dynamic and continuous batching")

SLOT_EFFICIENCY = Exercise(
    id="3.1",
    targets=(Target.parse("minillm.serving.batching:slot_efficiency"),),
    title="What a static batch does with its rows",
    minutes=5,
    difficulty=1,
    teaches="The longest answer decides how long a static batch takes, and everybody else's row runs on beside it.",
    hints=(
        "Two answers of 1 and 3 tokens go through one batch. How many steps does it take, how many rows does each step "
        "compute, and how many of the tokens made are wanted?",
        "Wanted: every token of every answer, sum(lengths).\n"
        "The steps of the batch: as many as its longest answer has tokens.\n"
        "Row-steps: in each of them all rows are computed, also those whose answer has ended.\n"
        "The share: wanted over row-steps.",
        "wanted = sum(lengths)\n"
        "row_steps = len(lengths) * ____\n"
        "return wanted / row_steps",
    ),
    notice="With equal lengths nothing is wasted: the waste is in the spread. One long answer among many short ones "
           "brings the share close to 1 / n, however well the machine computes.",
    section="Static batching: the longest decides",
    used_by=("03_batching",),
)

NEXT_BATCH = Exercise(
    id="3.2",
    targets=(Target.parse("minillm.serving.batching:next_batch"),),
    title="The dynamic batcher",
    minutes=15,
    difficulty=2,
    teaches="What dynamic batching decides, and all that it decides: when a batch starts, and who is in it.",
    hints=(
        "Two of four places are taken and the machine is free. What are the two reasons to start, and whose patience "
        "counts? If the machine becomes free later than that: who comes along?",
        "The moment at which the batch is full: the arrival of request number max_size. If fewer than that come, there "
        "is none (math.inf).\n"
        "The moment at which the first one's time is over: its arrival and timeout.\n"
        "The earlier of these two is reason enough; before the machine is free nothing starts.\n"
        "Count who has come by then, the moment itself included.\n"
        "Return the moment, and that number, max_size at most.",
        "full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf\n"
        "start = ____\n"
        "there = sum(arrival <= start for arrival in arrivals)\n"
        "return start, min(there, max_size)",
    ),
    notice="A busy machine makes the timeout idle: while it computes, more come than it would have waited for. Under "
           "load the batches fill by themselves, and what hurts then is waiting for the longest.",
    section="Dynamic batching: how long to wait",
    used_by=("03_batching",),
)

SPLIT_BUDGET = Exercise(
    id="3.3",
    targets=(Target.parse("minillm.serving.scheduler:split_budget"),),
    title="Who gets how many tokens of a step",
    minutes=15,
    difficulty=2,
    teaches="Chunked prefill: a long prompt goes in pieces, so that steps stay short and whoever decodes never waits.",
    hints=(
        "A step may have 10 tokens. One sequence has a prompt of 30, and two decode. How many does the prompt get, if "
        "those two are not to notice it?",
        "A count for each: 1 where one token is uncomputed (it decodes), 0 for now where there are more.\n"
        "What is left: the budget less what the decodes take.\n"
        "Then the prompts, in order. Each gets the smallest of three: its tokens, what is left, chunk_size if there is "
        "one.\n"
        "What it got is no longer left.",
        "counts = [1 if tokens == 1 else 0 for tokens in uncomputed]\n"
        "left = budget - sum(counts)\n"
        "for place, tokens in enumerate(uncomputed):\n"
        "    if tokens > 1:\n"
        "        counts[place] = min(____)\n"
        "        left -= counts[place]\n"
        "return counts",
    ),
    notice="The budget bounds how long a step takes, and with it the gap between two tokens of everybody who decodes. "
           "What a prompt pays for that is its own first token, some steps later.",
    section="A long prompt arrives: chunked prefill",
    used_by=("03_batching",),
)

SCHEDULE = Exercise(
    id="3.4",
    targets=(Target.parse("minillm.serving.scheduler:Scheduler.schedule"),),
    title="A step of continuous batching",
    minutes=25,
    difficulty=3,
    teaches="The order of a step: who runs is served, memory is made sure of, others are let in, then it is taken.",
    hints=(
        "Memory is short by one block, and somebody in the line is waiting for just the blocks that a preemption gives "
        "back. Who should have them? And who has to be out of `chosen` before the blocks are counted again?",
        "An empty StepPlan. What each of self.running has yet to compute, and split_budget of that.\n"
        "chosen: {sequence: count}, without those that get 0.\n"
        "While blocks_needed(chosen) is more than available: choose_victim(self.running), _preempt it, and take it out "
        "of chosen (it may not be in there: pop(victim, None)).\n"
        "Was nobody preempted, or does nobody run any more? Then _admit, which is told how many blocks are needed.\n"
        "Only now reserve, for all of chosen: what comes back are the plan's copies.\n"
        "For each of chosen: its row. If it has forks and the row samples, their ids go into plan.forks.",
        "plan = StepPlan()\n"
        "counts = ...  # split_budget, of the uncomputed tokens of each and of two limits in self.config\n"
        "chosen = {seq: count for seq, count in zip(self.running, counts) if count}\n"
        "while (needed := self.blocks_needed(chosen)) > ____:\n"
        "    ...  # three lines: who has to leave, send it back, take it out of chosen\n"
        "if ____:\n"
        "    self._admit(plan, chosen, needed)\n"
        "plan.copies = ...\n"
        "for seq, count in chosen.items():\n"
        "    ...  # its row; and the ids of its forks, if there are some and plan.rows[-1].samples\n"
        "return plan",
    ),
    notice="Nothing is taken before all is decided, so nothing has to be undone. One sequence may be in the line, run, "
           "be sent back and run again: the rows of a step never show it, they are tokens that are next.",
    section="Continuous batching: decide anew at every step",
    used_by=("03_batching",),
)

CHOOSE_VICTIM = Exercise(
    id="3.5",
    targets=(Target.parse("minillm.serving.scheduler:choose_victim"),),
    title="Whom to preempt",
    minutes=5,
    difficulty=1,
    teaches="Why it is the last in line, and not who frees the most: only so does the first one always get to its end.",
    hints=(
        "Two sequences outgrow memory, and each time the longer one is sent back. It comes back and grows past the "
        "other, which is now the shorter. Does either ever end? What never changes, by which one could choose?",
        "Every sequence has its place in the line: seq.order, (policy, arrival, answer).\n"
        "Such tuples compare from the left.\n"
        "The last in line has the greatest; max takes a key.",
        "return max(running, key=lambda seq: ____)",
    ),
    notice="Max by a place that is kept for life. By ids given anew, or by who came back last, a request that was sent "
           "back would be sent back again: vLLM had that (issue 41951).",
    section="When memory runs out: preemption",
    used_by=("03_batching",),
    core=False,
)

HUNT = Exercise(
    id="3.6",
    targets=(Target.parse("minillm.course.hunts:smallest_crowd"),),
    given=(Target.parse("minillm.course.hunts:let_in_with_a_bug"),),
    title="Bug hunt: a hit is not free",
    minutes=15,
    difficulty=2,
    teaches="An idle block is counted as available and as known. Whoever takes it as known makes it unavailable.",
    hints=(
        "Two blocks, one of them idle with the tokens 1 and 2. The prompt 1, 2, 3 takes the idle one, and another for "
        "the 3. How many are left, and how many does let_in_with_a_bug believe are left?",
        "Somebody has to begin with a block that was left: two tokens, and one more that is computed.\n"
        "What was left: just these two tokens.\n"
        "Somebody else has to be let in on the block that is counted twice: one token will do.\n"
        "num_blocks: as many as the three blocks seem to need, so that they are one too few.",
        "return 2, [1, 2], ____",
    ),
    notice="With no hits, or with blocks that somebody holds already, the count is right, and so is every test that "
           "has only these. Our scheduler asks BlockTables.blocks_to_start, which adds the idle ones.",
    section="When memory runs out: preemption",
    used_by=(),
    core=False,
)

EXERCISES = (SLOT_EFFICIENCY, NEXT_BATCH, SPLIT_BUDGET, SCHEDULE, CHOOSE_VICTIM, HUNT)
