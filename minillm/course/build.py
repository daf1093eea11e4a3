"""Write exercises/ and solutions/ from the catalogue and the package's own source: python -m minillm.course.build

Both hold one module a step. A solution is the real code; a stub is the same with the body raising
NotImplementedError("exercise 1.4"). A method is asked as a subclass with that one method.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from minillm.course import catalogue, source
from minillm.course.exercise import Exercise, Step, Target

WIDTH = 100
STUB_HEAD = """\
Step {number}, {title}: the exercises.

Write in your own copy, mine/exercises/{filename}. The commands, in the order in which you need them:

    minillm check {first}       does it work? if not, the smallest case where it goes wrong
    minillm hint {first}        one hint more each time, three in all
    minillm solution {first}    yours and ours side by side (once yours passes, or after three hints)
    minillm reset {first}       start this one again; what you had is kept in mine/backups
    minillm progress        what is done, what is next

exercises/{filename} is generated from the package's source by minillm.course.build.
"""
PARTS = {
    "warm-up": "# Warm-up: small ones to begin with. They do not count against your progress.",
    "core": "# The core exercises.",
    "further": "# Further: what follows does not count against your progress.",
}
SOLUTION_HEAD = """\
Step {number}, {title}: the answers, as the package itself has them.

Generated from the package's source by minillm.course.build; nothing here is edited by hand.
"""


def stub(step: Step) -> str:
    """The text of exercises/stepN_*.py."""
    return _render(step, STUB_HEAD, solved=False)


def solution(step: Step) -> str:
    """The text of solutions/stepN_*.py."""
    return _render(step, SOLUTION_HEAD, solved=True)


def _render(step: Step, head: str, solved: bool) -> str:
    exercises = catalogue.of_step(step.number)
    imports = source.Imports()
    for exercise in exercises:
        _collect(exercise, imports)
    text = head.format(number=step.number, title=step.title, filename=step.filename, first=exercises[0].id)
    lines = [f'"""{text}"""', "", "from __future__ import annotations", "", *imports.lines()]
    part = "core"  # a step that begins with these has no heading for them
    for index, exercise in enumerate(exercises):
        lines += ["", ""] if index else []
        if exercise.part != part:
            part = exercise.part
            lines += [PARTS[part], "", ""]
        lines += block(exercise, solved)
    return "\n".join(_single_gaps(lines)).rstrip("\n") + "\n"


def _collect(exercise: Exercise, imports: source.Imports) -> None:
    """Add the imports of an exercise's functions and of the functions given with it."""
    defined = {t.reader_name for e in catalogue.of_step(exercise.step_number) for t in (*e.given, *e.functions)}
    for target in (*exercise.given, *exercise.functions):
        source.needed_imports(source.read(target), defined, imports)


def import_lines(exercise: Exercise) -> list[str]:
    """The import statements that one exercise needs on its own."""
    imports = source.Imports()
    _collect(exercise, imports)
    return [line for line in imports.lines() if line]


def _single_gaps(lines: list[str]) -> list[str]:
    """No more than two empty lines in a row."""
    kept: list[str] = []
    for line in lines:
        if line or kept[-2:] != ["", ""]:
            kept.append(line)
    return kept


def block(exercise: Exercise, solved: bool) -> list[str]:
    """An exercise as it stands in a file: its title, the functions given, those to write or written, the launcher."""
    lines = ["# " + "-" * 76, *_title(exercise)]
    if solved:
        lines += ["#", *_comment("Notice: " + exercise.notice)]
    for target in exercise.given:
        lines += ["", "", *source.without_marks(source.read(target))]
    for target in exercise.functions:
        lines += ["", "", *function_lines(exercise, target, solved)]
    return lines


def function_lines(exercise: Exercise, target: Target, solved: bool) -> list[str]:
    """One function of an exercise, blank or solved; a method inside its subclass; a launcher is never blank."""
    code = source.read(target)
    whole = solved or target == exercise.launcher
    lines = source.without_marks(code) if whole else source.blank(code, exercise.id)
    if target.owner is None:
        return lines
    parent = f"{target.module.rpartition('.')[2]}.{target.owner}"
    return [f"class {target.reader_name}({parent}):", f'    """{parent} with this one method written by you."""', "",
            *(f"    {line}" if line else "" for line in lines)]


def _title(exercise: Exercise) -> list[str]:
    lines = sum(source.answer_lines(source.read(target), exercise.id) for target in exercise.targets)
    step = catalogue.step_of(exercise)
    length = f"{lines} line{'s' if lines > 1 else ''}"
    return [f"# {exercise.id} {exercise.title}",
            f"# {exercise.minutes} minutes, difficulty {exercise.difficulty} of 3, our answer has {length}",
            *_comment("Teaches: " + exercise.teaches),
            *_comment(f"Lesson: notebooks/{step.notebook}, section \"{exercise.section}\"")]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ")


def files() -> dict[str, str]:
    """Every generated file: its path below the repository's root, and its text."""
    made = {}
    for step in catalogue.STEPS.values():
        made[f"exercises/{step.filename}"] = stub(step)
        made[f"solutions/{step.filename}"] = solution(step)
    return made


def write(root: Path) -> list[str]:
    """Write what has changed below `root`; the paths written."""
    written = []
    for name, text in files().items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            written.append(name)
    return written


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    for name in write(root) or ["nothing: exercises/ and solutions/ are as the source has them"]:
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
