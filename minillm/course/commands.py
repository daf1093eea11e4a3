"""The reader's commands: check, hint, solution, progress, reset, mine.

`cli` calls `register`; nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from minillm.course.checking import Checked
    from minillm.course.exercise import Exercise
    from minillm.course.progress import Progress
    from minillm.course.workspace import Workspace

Id = Annotated[str, typer.Argument(help="An exercise, like 1.1.", show_default=False)]
SIDE_BY_SIDE = 120  # columns of a terminal

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def register(app: typer.Typer) -> None:
    for command in (check, hint, solution, progress, reset, mine):
        app.command()(command)


def _open() -> tuple[Workspace, Progress]:
    """The reader's files and progress; what there is to say about them goes to stderr."""
    from minillm.course import progress as progress_module
    from minillm.course import workspace

    place = workspace.find()
    notes = workspace.sync(place)
    kept = progress_module.load(place)
    for line in [*notes, *filter(None, [kept.note])]:
        print(line, file=sys.stderr)
    return place, kept


def check(
    names: Annotated[list[str] | None, typer.Argument(
        help="Exercises or steps, like 1.1 or step1. Default: the next one.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check what you wrote: passed, or where it goes wrong.

    \b
    It is read from mine/exercises. Your code runs in a process of its own, for 10
    seconds at most. Exit code 0 when all passed, 1 when not; what this machine
    cannot run counts for neither.

    \b
    Examples:
      minillm check 1.1
      minillm check step1
    """
    from minillm.course import catalogue, checking
    from minillm.course.running import PASSED, SKIPPED

    if names:
        catalogue.select(names)  # an unknown name is refused before anything is copied or run
    place, kept = _open()
    following = kept.next()
    exercises = catalogue.select(names or [following.id if following else "step0"])
    results = checking.check(place, exercises)
    remember(place, kept, results)
    if as_json:
        print(json.dumps([_plain(checked) for checked in results], indent=2))
    else:
        show(place, kept, results)
    raise typer.Exit(0 if all(checked.result.status in (PASSED, SKIPPED) for checked in results) else 1)


def remember(place: Workspace, kept: Progress, results: Sequence[Checked]) -> None:
    """Count the checks, and keep what passed; what passed once stays passed until it is reset."""
    from minillm.course import progress as progress_module
    from minillm.course.running import NOT_STARTED, SKIPPED

    tried = [checked for checked in results if checked.result.status not in (NOT_STARTED, SKIPPED)]
    for checked in tried:
        record = kept.of(checked.exercise)
        record.checks += 1
        record.passed = record.passed or checked.result.passed
    if tried:
        kept.last = next((c for c in tried if not c.result.passed), tried[-1]).exercise.id
    progress_module.save(place, kept)


def _plain(checked: Checked) -> dict:
    result = checked.result
    return {"exercise": result.exercise, "title": checked.exercise.title, "status": result.status,
            "diagnosis": result.diagnosis, **dict(result.facts), "picture": list(result.picture),
            "printed": list(checked.printed)}


def show(place: Workspace, kept: Progress, results: Sequence[Checked]) -> None:
    """Every result in a line; the facts of the first that is not passed; what to do now."""
    from minillm.course import telling
    from minillm.course.running import NOT_STARTED, PASSED, SKIPPED

    for checked in results:
        print(telling.headline(checked))
    open_ones = [checked for checked in results if checked.result.status not in (PASSED, SKIPPED)]
    tried = [checked for checked in open_ones if checked.result.status != NOT_STARTED]
    shown = (tried or open_ones or list(results))[0]
    if len(results) > 1 and open_ones:
        print(f"\n{telling.headline(shown)}")
    lines = telling.details(shown)
    print("\n".join(["", *lines, ""] if lines else [""]))
    all_of_many = len(results) > 1 and not open_ones
    told = telling.next_lines(kept, place) if all_of_many else telling.after_check(kept, place, shown)
    print("\n".join(told))


def hint(exercise_id: Id) -> None:
    """Show one hint more, of three.

    A question, then what each line does, then nearly the answer.

    \b
    Example:
      minillm hint 1.1
    """
    from minillm.course import catalogue, telling
    from minillm.course import progress as progress_module

    exercise = catalogue.find(exercise_id)
    place, kept = _open()
    record = kept.of(exercise)
    if record.hints >= progress_module.ALL_HINTS:
        numbers = list(range(1, progress_module.ALL_HINTS + 1))
    else:
        record.hints += 1
        numbers = [record.hints]
        progress_module.save(place, kept)
    print("\n\n".join("\n".join(telling.hint_lines(exercise, number)) for number in numbers))
    if record.hints >= progress_module.ALL_HINTS:
        print(f"\nThat was the last hint; minillm solution {exercise.id} is open to you.")


def solution(exercise_id: Id) -> None:
    """Show your answer and ours side by side.

    Open once yours passes, or after three hints; with what to notice.

    \b
    Example:
      minillm solution 1.1
    """
    from minillm.course import catalogue, telling
    from minillm.course.progress import ALL_HINTS

    exercise = catalogue.find(exercise_id)
    place, kept = _open()
    if not kept.solution_open(exercise):
        left = ALL_HINTS - kept.of(exercise).hints
        print(f"{exercise.id} {exercise.title}: the solution opens once yours passes, or after {left} more "
              f"hint{'s' if left > 1 else ''} (minillm hint {exercise.id}).")
        raise typer.Exit(1)
    _side_by_side(exercise, telling.their_answer(exercise, place), telling.our_answer(exercise))
    print("\n".join(["", *telling.fact("notice", exercise.notice)]))


def _side_by_side(exercise: Exercise, yours: str, ours: str) -> None:
    """Two columns where they fit, one below the other where they do not."""
    from rich.syntax import Syntax

    from minillm.cli.lines import console, table

    out = console()
    codes = [Syntax(text, "python", background_color="default", word_wrap=True) for text in (yours, ours)]
    out.print(f"{exercise.id} {exercise.title}", style="bold")
    if out.width >= SIDE_BY_SIDE:
        columns = table("yours", "ours")
        columns.expand = True
        for column in columns.columns:
            column.justify, column.no_wrap, column.ratio = "left", False, 1
        columns.add_row(*codes)
        out.print(columns)
        return
    for name, code in zip(("yours", "ours"), codes):
        out.print(f"\n{name}", style="bold")
        out.print(code)


def progress(as_json: AsJson = False) -> None:
    """Show what is done and what is next.

    \b
    Example:
      minillm progress
    """
    from minillm.course import catalogue, telling

    place, kept = _open()
    if as_json:
        following = kept.next()
        print(json.dumps({"next": following.id if following else None,
                          "exercises": [_plain_state(kept, e) for e in catalogue.EXERCISES],
                          "tokens_per_second": {step: {"yours": yours, "ours": ours}
                                                for step, (yours, ours) in kept.speeds.items()}}, indent=2))
        return
    _progress_table(kept)
    for step, (yours, ours) in sorted(kept.speeds.items()):
        print(f"your engine after {step}: {yours:.1f} tokens/s (ours: {ours:.1f})")
    print("\n".join(telling.next_lines(kept, place)))


def _plain_state(kept: Progress, exercise: Exercise) -> dict:
    record = kept.of(exercise)
    return {"exercise": exercise.id, "title": exercise.title, "core": exercise.core, "minutes": exercise.minutes,
            "difficulty": exercise.difficulty, "passed": record.passed, "checks": record.checks, "hints": record.hints}


def _progress_table(kept: Progress) -> None:
    from minillm.cli.lines import console, table
    from minillm.course import catalogue

    rows = table("", "exercise", "minutes", "difficulty", "hints", "state")
    rows.columns[1].justify = rows.columns[5].justify = "left"
    rows.columns[1].no_wrap = False
    following = kept.next()
    for number, step in catalogue.STEPS.items():
        rows.add_row("", f"[bold]step {number}: {step.title}[/]", *[""] * 4)
        part = "core"
        for e in catalogue.of_step(number):
            if e.part != part:
                part = e.part
                rows.add_row("", f"[dim]{part}[/]", *[""] * 4)
            record = kept.of(e)
            state = "passed" if record.passed else "next" if e is following else "tried" if record.checks else ""
            rows.add_row(e.id, e.title, str(e.minutes), "*" * e.difficulty, str(record.hints or ""), state)
    core = [e for e in catalogue.EXERCISES if e.core]
    passed = sum(kept.of(e).passed for e in core)
    out = console()
    out.print(rows)
    out.print(f"{passed} of {len(core)} passed, warm-ups and those under Further not counted")


def reset(
    name: Annotated[str, typer.Argument(help="An exercise, like 1.1, or a whole step's file, like step1.",
                                        show_default=False)],
) -> None:
    """Start an exercise again.

    Its stub is put back, and what you had is kept in mine/backups.

    \b
    Examples:
      minillm reset 1.1
      minillm reset step1
    """
    from minillm.course import catalogue, workspace
    from minillm.course import progress as progress_module

    exercises = catalogue.select([name])
    place, kept = _open()
    if name.startswith("step"):
        path, backup = workspace.reset_step(place, catalogue.step_of(exercises[0]))
    else:
        path, backup = workspace.reset(place, exercises[0])
    for exercise in exercises:
        kept.of(exercise).passed = False
    progress_module.save(place, kept)
    print(f"{name} starts again in {place.shown(path)}"
          + (f"; what you had is in {place.shown(backup)}" if backup else ""))


def mine() -> None:
    """Copy missing exercises and lessons to mine/.

    There you edit them; what you changed stays as it is.

    \b
    Example:
      minillm mine
    """
    from minillm.course import workspace

    notes = workspace.sync(workspace.find(), restore=True)
    print("\n".join(notes or ["mine/ is up to date"]))
