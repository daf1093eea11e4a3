"""Step 0, meet the machine: one exercise, solved together in the notebook, to learn how exercises work."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Step, Target

STEP = Step(0, "meet_the_machine", "meet the machine")

EXERCISES = (
    Exercise(
        id="0.1",
        targets=(Target.parse("minillm.measure.cost:roofline_seconds"),),
        title="The time a roofline allows",
        minutes=5,
        difficulty=1,
        teaches="A piece of work is bound by arithmetic or by memory traffic; the slower of the two decides.",
        hints=(
            "A machine computes and moves bytes at the same time. If the arithmetic alone takes 2 seconds and the "
            "transfers alone take 3, when is the work done: after 2, 3 or 5 seconds?",
            "Line 1: the seconds that the arithmetic takes, from flops and FLOP per second.\n"
            "Line 2: the seconds that the transfers take, from bytes and bytes per second.\n"
            "Line 3: return the one that decides.",
            "compute_seconds = flops / peak_flops\n"
            "memory_seconds = bytes_moved / bandwidth\n"
            "return ____(compute_seconds, memory_seconds)",
        ),
        notice="max, not a sum: both happen at once. Where the two are equal is the ridge: work with fewer FLOP per "
               "byte than peak_flops / bandwidth waits for memory.",
        section="The first exercise, together",
        used_by=("plan",),
    ),
)
