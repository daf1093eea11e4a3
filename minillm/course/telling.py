"""What the reader reads: results, hints and solutions as plain text, the same in a terminal and in a notebook."""

from __future__ import annotations

import ast
import shutil
import sys
import textwrap

from minillm.course import catalogue, source
from minillm.course.checking import Checked
from minillm.course.exercise import Exercise
from minillm.course.progress import ALL_HINTS, Progress
from minillm.course.running import NOT_STARTED, SKIPPED
from minillm.course.workspace import Workspace

LABEL = 10


def width() -> int:
    """Columns to wrap prose to: the same everywhere but on a terminal, so that a notebook's output does not vary."""
    if not sys.stdout.isatty():
        return 100
    return min(100, shutil.get_terminal_size((100, 24)).columns)


def headline(checked: Checked) -> str:
    words = {"passed": "passed", "not started": "not written yet", "failed": "not yet",
             "skipped": dict(checked.result.facts).get("problem")}[checked.result.status]
    return f"{checked.exercise.id} {checked.exercise.title}: {words}"


def details(checked: Checked) -> list[str]:
    """The facts of a result, one below the other, its picture, and what the reader's code printed."""
    if checked.result.status == SKIPPED:
        return []  # the headline says it
    lines = [line for label, text in checked.result.facts for line in fact(label, text)]
    if checked.result.picture:
        lines += ["", *(f"  {line}".rstrip() for line in checked.result.picture)]
    if checked.printed:
        lines += ["", "  your code printed:", *(f"    {line}" for line in checked.printed)]
    return lines


def fact(label: str, text: str) -> list[str]:
    indent = " " * (LABEL + 2)
    if label == "at":  # a line of the reader's code keeps its shape
        return [f"  {label:<{LABEL}}{text}"]
    wrapped = textwrap.wrap(text, width() - len(indent), break_long_words=False) or [""]
    return [f"  {label:<{LABEL}}{wrapped[0]}", *(indent + line for line in wrapped[1:])]


def after_check(progress: Progress, workspace: Workspace, checked: Checked) -> list[str]:
    """What to do now."""
    exercise, result = checked.exercise, checked.result
    if result.status == SKIPPED:
        return next_lines(progress, workspace)
    if not result.passed:
        seen = progress.of(exercise).hints
        if seen >= ALL_HINTS:
            return [f"next: minillm hint {exercise.id} shows the three hints again, minillm solution {exercise.id} "
                    "the answer"]
        first = f"next: write it, then minillm check {exercise.id}; " if result.status == NOT_STARTED else "next: "
        return [f"{first}minillm hint {exercise.id} (hint {seen + 1} of {ALL_HINTS})"]
    told = [f"compare: minillm solution {exercise.id} shows yours and ours side by side"]
    return [*told, *next_lines(progress, workspace, exercise)]


def next_lines(progress: Progress, workspace: Workspace, after: Exercise | None = None) -> list[str]:
    """The next exercise, and where it is written."""
    following = progress.next(after)
    if following is None:
        return ["next: every core exercise has passed; minillm generate --using exercises \"Who are you?\""]
    path = workspace.shown(workspace.file(catalogue.step_of(following)))
    return [f"next: {following.id} {following.title} (about {following.minutes} minutes), in {path}"]


def hint_lines(exercise: Exercise, number: int) -> list[str]:
    """One hint. The first is a question, the second each line's job, the third nearly the answer."""
    text = exercise.hints[number - 1]
    kind = ("a question", "what each line does", "nearly the answer: fill in ____")[number - 1]
    lines = [f"{exercise.id} {exercise.title}, hint {number} of {ALL_HINTS}: {kind}", ""]
    for line in text.splitlines():
        if number == ALL_HINTS:
            lines.append(f"    {line}".rstrip())
        else:
            deeper = "    " if number == 2 else "  "
            lines += textwrap.wrap(line, width() - 2, initial_indent="  ", subsequent_indent=deeper)
    return lines


def our_answer(exercise: Exercise) -> str:
    """The package's own functions of an exercise, as source without signatures and docstrings."""
    return "\n\n".join(_short(t.function, "\n".join(source.without_marks(source.read(t)))) for t in exercise.targets)


def their_answer(exercise: Exercise, workspace: Workspace) -> str:
    """The reader's functions of an exercise, likewise; a comment in place of one that is not there."""
    path = workspace.file(catalogue.step_of(exercise))
    try:
        text = path.read_text(encoding="utf-8")
        pieces = [(t, source.cut(text, t.reader_name if t.owner is None else f"{t.reader_name}.{t.function}"))
                  for t in exercise.targets]
    except (OSError, SyntaxError, UnicodeDecodeError):
        return f"# {path.name} cannot be read"
    return "\n\n".join(_short(t.function, piece) if piece else f"# no {t.reader_name} in {path.name}"
                       for t, piece in pieces)


def _short(name: str, text: str) -> str:
    """A function with its signature and docstring, which both answers share, cut to `def name(...):`."""
    node = ast.parse(text).body[0]
    body = source.body_lines(node, text.splitlines())
    return "\n".join([f"def {name}(...):", *body])
