"""Every exercise of the course, in reading order.

A step is added with a module stepN.py here (its STEP and EXERCISES), a line in MODULES below, its checks in
tests/exercises/stepN*.py, and its wrong and right answers beside them; `python -m minillm.course.build` does the rest.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from minillm.course import step0, step1, step2, step3, step4
from minillm.course.exercise import Exercise, Step

MODULES = (step0, step1, step2, step3, step4)
STEPS: dict[int, Step] = {module.STEP.number: module.STEP for module in MODULES}
EXERCISES: tuple[Exercise, ...] = tuple(exercise for module in MODULES for exercise in module.EXERCISES)


class CourseError(ValueError):
    """An exercise that does not exist, or a folder or file of the course that is not there."""


def find(exercise_id: str) -> Exercise:
    """The exercise of an id like "1.3". Raises CourseError for an unknown one."""
    for exercise in EXERCISES:
        if exercise.id == exercise_id:
            return exercise
    known = [exercise.id for exercise in EXERCISES] + [f"step{number}" for number in STEPS]
    near = difflib.get_close_matches(exercise_id, known, n=2)
    expected = " or ".join(near) if near else f"one of {', '.join(known)}"
    raise CourseError(f"no exercise {exercise_id!r}: expected {expected}")


def step_of(exercise: Exercise) -> Step:
    return STEPS[exercise.step_number]


def of_step(number: int) -> list[Exercise]:
    """A step's exercises, in order."""
    return [exercise for exercise in EXERCISES if exercise.step_number == number]


def select(names: Sequence[str]) -> list[Exercise]:
    """Exercises named by ids and steps ("1.3", "step1"), each once, in the order of the catalogue."""
    wanted = set()
    for name in names:
        chosen = [e.id for number in STEPS for e in of_step(number) if name == f"step{number}"]
        wanted |= set(chosen or [find(name).id])
    return [exercise for exercise in EXERCISES if exercise.id in wanted]
