"""Run one check on one file, in this process: load the file, forbid the package's own function, call, compare.

Only `child` does this to a reader's file; the tests do it to the wrong and right answers.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from minillm.course import catalogue, source, stand_in
from minillm.course.checks import Case, Check, Outcome, copied, written_into
from minillm.course.compare import Difference, difference, show
from minillm.course.exercise import Exercise, Target

PASSED, NOT_STARTED, FAILED, SKIPPED = "passed", "not started", "failed", "skipped"


@dataclass(frozen=True)
class Result:
    """How a check ended. `diagnosis`: a mistake's name, or a general one (exception, shape, …), or None.

    `facts` are (label, text) pairs to print one below the other, `picture` lines to print as they are.
    """

    exercise: str
    status: str
    diagnosis: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    picture: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status == PASSED


class ForbiddenError(Exception):
    """The package's own function, or a library's that does the same, was called during the check."""


def load_check(root: Path, exercise: Exercise) -> Check:
    """The check of an exercise, out of the stepN.py or stepN_*.py in tests/exercises below `root`."""
    folder, step = root / "tests" / "exercises", f"step{exercise.step_number}"
    for path in sorted([*folder.glob(f"{step}.py"), *folder.glob(f"{step}_*.py")]):
        name = f"minillm_checks_{path.stem}"
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        for check in sys.modules[name].CHECKS:
            if check.exercise == exercise.id:
                return check
    raise KeyError(f"no check of {exercise.id} in {folder}")


def load_file(path: Path) -> ModuleType:
    """A module made of a file, without leaving compiled files beside it. Raises whatever the file raises."""
    text = path.read_text(encoding="utf-8")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    linecache.checkcache(str(path))
    sys.modules[path.stem] = module  # dataclasses look their module up
    try:
        with stand_in.where_triton_is_missing():
            exec(compile(text, str(path), "exec"), module.__dict__)
    finally:
        del sys.modules[path.stem]
    return module


def borrow(module: ModuleType, exercise: Exercise) -> None:
    """Put the package's functions of an exercise into a reader's file, in place of what it has under their names."""
    for target in exercise.functions if missing(exercise) is None else ():
        if target.owner is None:
            setattr(module, target.reader_name, target.resolve())


@contextlib.contextmanager
def forbidding(exercise: Exercise) -> Iterator[list[str]]:
    """While this lasts, the package's own functions and the libraries' raise; the names called are collected."""
    library = [Target(*name.rpartition(".")[::2]) for name in exercise.library]
    called: list[str] = []
    kept = [(t.holder(), t.function, t.resolve()) for t in (*exercise.functions, *library)]
    try:
        for target in exercise.functions:
            refuse = _forbidden(called, f"{target}: this is the function you are writing")
            setattr(target.holder(), target.function, refuse)
        for target in library:
            refuse = _forbidden(called, f"{target}: writing what it does is the exercise")
            setattr(target.holder(), target.function, refuse)
        yield called
    finally:
        for holder, name, function in kept:
            setattr(holder, name, function)


def _forbidden(called: list[str], message: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        called.append(message)
        raise ForbiddenError(message)

    return refuse


def originals(exercise: Exercise) -> dict[str, Any]:
    """The package's functions by name, out of reach of `forbidding`; for a method, a subclass that holds it."""
    return {t.function: type(t.owner, (t.holder(),), {t.function: t.resolve()}) if t.owner else t.resolve()
            for t in exercise.functions}


def missing(exercise: Exercise) -> str | None:
    """What this machine lacks to run an exercise, in a line; None: nothing."""
    if exercise.needs_triton and importlib.util.find_spec("triton") is None:
        return "needs Triton, which runs on Linux"
    return None


def run(exercise: Exercise, check: Check, path: Path) -> Result:
    """The result of one check on one file; never raises for anything that the file does."""
    lacking = missing(exercise)
    if lacking:
        return Result(exercise.id, SKIPPED, "missing-here", (("problem", lacking),))
    ours = originals(exercise)
    cases = list(check.cases())
    # before anything is forbidden: our launcher calls our kernel
    wanted = [check.call(ours[_called(exercise, case).function], **copied(case.args)) for case in cases]
    with forbidding(exercise) as called:
        try:
            module = load_file(path)
        except BaseException as error:
            return _broken_file(exercise, path, error)
        unlike = _unlike(exercise, ours, module, path)
        if unlike:
            return unlike
        for other in catalogue.of_step(exercise.step_number):
            if other.id != exercise.id:  # one mistake is one exercise's
                borrow(module, other)
        outcomes = []
        for case, expected in zip(cases, wanted):
            theirs = getattr(module, _called(exercise, case).reader_name)
            try:
                outcomes.append(_outcome(check, theirs, case, expected, path))
            except BaseException as error:  # SystemExit and its like would take the check with them
                return _ended(exercise, path, case, error)
    if called:
        return Result(exercise.id, FAILED, "forbidden", (("problem", f"your code calls {called[0]}"),))
    failed = next((o for o in outcomes if not o.right), None)
    if failed is None:
        return Result(exercise.id, PASSED)
    result = _failure(exercise, check, path, outcomes, failed)
    return _with_picture(exercise, check, result, ours, module, failed.case)


def _called(exercise: Exercise, case: Case) -> Target:
    """What a case calls: a kernel's launcher, or else the function of its name, or the only one."""
    return exercise.launcher or next(t for t in exercise.targets if case.function in (None, t.function))


def _with_picture(exercise: Exercise, check: Check, result: Result, ours: dict[str, Any], module: ModuleType,
                  case: Case) -> Result:
    """The result with what its check draws of ours and theirs, if it draws."""
    if check.draw is None or result.status != FAILED:
        return result
    target = _called(exercise, case)
    args = copied(case.args)
    return replace(result, picture=tuple(check.draw(ours[target.function], getattr(module, target.reader_name), args)))


def _unlike(exercise: Exercise, ours: dict[str, Any], module: ModuleType, path: Path) -> Result | None:
    """The result if a file lacks a function of the exercise, or has it with other parameters."""
    for target in exercise.functions:
        if not hasattr(module, target.reader_name):
            return Result(exercise.id, FAILED, "missing", (
                ("problem", f"{path.name} has no {target.reader_name}"),
                ("so", f"'minillm reset {exercise.id}' puts its stub back, and leaves the rest as it is")))
    for target in exercise.functions:
        told = _other_parameters(ours[target.function], getattr(module, target.reader_name))
        if told:
            return Result(exercise.id, FAILED, "signature", told)
    return None


def _other_parameters(ours: Any, theirs: Any) -> tuple[tuple[str, str], ...]:
    """What to say if a reader's function does not take what ours does; the package calls it by place and by name."""
    if not callable(theirs):
        return (("problem", f"{ours.__name__} is {show(theirs)}: expected a function"),)
    if isinstance(ours, type):
        return ()
    if hasattr(ours, "fn"):  # a Triton kernel, around its function
        if not hasattr(theirs, "fn"):
            return (("problem", f"{ours.__name__} is no kernel any more: expected @triton.jit above it"),)
        ours, theirs = ours.fn, theirs.fn
    wanted, came = (", ".join(inspect.signature(function).parameters) for function in (ours, theirs))
    if wanted == came:
        return ()
    return (("expected", f"{ours.__name__}({wanted})"), ("came", f"{ours.__name__}({came})"),
            ("idea", "Keep the parameters as the stub has them: whoever calls the function relies on them."))


def _outcome(check: Check, theirs: Callable[..., Any], case: Case, expected: Any, path: Path) -> Outcome:
    """What the reader's function gives in one case, beside what ours gave."""
    args = copied(case.args)
    try:
        came = check.call(theirs, **args)
    except Exception as error:
        return Outcome(case, expected, error=_raised(error, path))
    found = difference(expected, came, check.tolerance, check.names)
    changed = written_into(case.args, args)
    if found is None and changed:
        found = Difference("input-changed", f"{changed} as it was before the call", f"{changed} written into")
    return Outcome(case, expected, came, difference=found)


def _raised(error: Exception, path: Path) -> Exception:
    """What the reader's code raised: Triton's interpreter wraps an error that comes from inside of a kernel.

    Its traceback is the innermost one that passes a line of the reader's.
    """
    trace = error.__traceback__
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
        trace = error.__traceback__ if _frames(error, path) else trace
    return error.with_traceback(trace)


def _broken_file(exercise: Exercise, path: Path, error: BaseException) -> Result:
    """A file that cannot be loaded at all."""
    if isinstance(error, FileNotFoundError) and error.filename == str(path):
        return Result(exercise.id, FAILED, "deleted", (
            ("problem", f"mine/exercises/{path.name} is not there"),
            ("so", f"'minillm reset step{exercise.step_number}' puts a fresh one there")))
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return Result(exercise.id, FAILED, "syntax", (
            ("problem", f"{path.name} is no Python yet: {error.msg}"),
            ("at", f"line {error.lineno}: {(error.text or '').strip()}")))
    if isinstance(error, UnicodeDecodeError):
        return Result(exercise.id, FAILED, "syntax", (("problem", f"{path.name} is not text in UTF-8"),))
    return Result(exercise.id, FAILED, "import", (
        ("problem", f"{path.name} stops while it is loaded: {_named(error)}"), *_place(error, path)))


def _ended(exercise: Exercise, path: Path, case: Case, error: BaseException) -> Result:
    return Result(exercise.id, FAILED, "exit", (
        *_call(case), ("came", f"{_named(error)}, which ends the program"), *_place(error, path),
        ("idea", "Return a value instead.")))


def _failure(exercise: Exercise, check: Check, path: Path, outcomes: Sequence[Outcome], failed: Outcome) -> Result:
    """The first case that went wrong, and the idea probably missing if it is known."""
    if _is_blank(failed):
        return _not_written(exercise, path, outcomes)
    facts = _call(failed.case)
    found = failed.difference
    if found is None:
        facts += [("expected", show(failed.expected, check.names)), ("came", _named(failed.error)),
                  *_place(failed.error, path)]
        general = "exception"
    else:
        facts += [("expected", found.expected), ("came", found.came)]
        facts += [("where", found.where)] if found.where else []
        general = None if found.kind == "value" else found.kind
    mistake = None if general == "input-changed" else check.diagnose(outcomes, failed)
    idea = mistake.idea if mistake else GENERAL_IDEAS.get(general)
    facts += [("idea", idea)] if idea else []
    return Result(exercise.id, FAILED, mistake.name if mistake else general, tuple(facts))


GENERAL_IDEAS = {
    "none-returned": "Is a return missing at the end?",
    "input-changed": "Whoever called still needs its input: make a new one instead of writing into it.",
}


def _call(case: Case) -> list[tuple[str, str]]:
    shown = case.shown or ", ".join(f"{name}={show(value)}" for name, value in case.args.items())
    return [("case", f"{case.function}: {case.about}" if case.function else case.about), ("input", shown)]


def _is_blank(outcome: Outcome) -> bool:
    return isinstance(outcome.error, NotImplementedError) and str(outcome.error).startswith("exercise ")


def _not_written(exercise: Exercise, path: Path, outcomes: Sequence[Outcome]) -> Result:
    """A stub that is still one, wholly or for one of several functions."""
    blank = {o.case.function or exercise.targets[0].function for o in outcomes if _is_blank(o)}
    first = next(t for t in exercise.targets if t.function in blank)
    node = source.find(ast.parse(path.read_text(encoding="utf-8")), first.reader_name)
    facts = (("to write", f"{first.reader_name}, line {node.lineno} of mine/exercises/{path.name}"),)
    if len(blank) == len(exercise.targets):
        return Result(exercise.id, NOT_STARTED, "not-written", facts)
    return Result(exercise.id, FAILED, "not-written", facts)


def _named(error: BaseException) -> str:
    """An exception's name and its message's first line, cut to a line."""
    message = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {message[0]}" if message else type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"


def _place(error: BaseException, path: Path) -> list[tuple[str, str]]:
    """The reader's own line that was running, if one was."""
    frames = _frames(error, path)
    return [("at", f"{path.name}, line {frames[-1].lineno}: {frames[-1].line}")] if frames else []


def _frames(error: BaseException, path: Path) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
