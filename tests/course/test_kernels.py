"""Exercises that are Triton kernels: launcher and kernel belong together, errors come from the kernel's own line, and
where there is no Triton the rest of a step can be checked all the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from minillm import cli
from minillm.course import build, catalogue, checking, exchange, progress, running, step4, telling, workspace
from minillm.course.checking import Checked
from minillm.course.exercise import Exercise, Step, Target
from minillm.course.triton_checks import in_place_of
from minillm.course.triton_errors import ERRORS
from minillm.course.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
ADD = step4.ADD
RIGHT = ROOT / "tests" / "exercises" / "right_answers" / "4.1" / "every_few_elements.py"
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled in this process")


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without Triton: it is not found, and importing it fails."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" or name.startswith("minillm.kernels."):
            module = sys.modules[name]
            monkeypatch.delitem(sys.modules, name)
            package, _, last = name.rpartition(".")
            if getattr(sys.modules.get(package), last, None) is module:
                monkeypatch.delattr(sys.modules[package], last)  # `from package import name` would find it
    monkeypatch.setitem(sys.modules, "triton", None)


def checked(path: Path, exercise: Exercise = ADD) -> running.Result:
    return running.run(exercise, running.load_check(ROOT, exercise), path)


def variant(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """A right answer of 4.1 with something changed."""
    text = RIGHT.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "changed.py"
    path.write_text(text, encoding="utf-8")
    return path


@interpreted
def test_an_error_in_a_kernel_is_told_as_it_was_raised(tmp_path: Path) -> None:
    path = variant(tmp_path, ("x = tl.load(x_ptr + at)", "x = tl.load(x_ptr + place)"))
    result = checked(path)
    facts = dict(result.facts)
    line = path.read_text().splitlines().index("    x = tl.load(x_ptr + place)") + 1
    assert result.diagnosis == "exception"
    assert facts["came"] == "NameError: name 'place' is not defined"
    assert facts["at"] == f"changed.py, line {line}: x = tl.load(x_ptr + place)"


@interpreted
@pytest.mark.parametrize(("line", "diagnosis"), [
    ("x = tl.load(x_ptr + at + tl.arange(0, 2 * BLOCK))", "shapes-do-not-match"),
    ("x = tl.load(x_ptr + tl.arange(0, 3))", "arange-not-constexpr"),
    ("x = tl.load(x_ptr, mask=at < BLOCK)", "one-address"),
    ("x = tl.load(x_ptr + at / 1)", "sum-with-a-pointer"),
    ("x = tl.load(x_ptr + at) if at > 0 else 0", "truth-of-a-block"),
    ("x = tl.load(x_ptr + at if not at < 0 else at)", "truth-of-a-block"),
    ("x = [tl.load(x_ptr + i) for i in at]", "element-of-a-block"),
    ("x = torch.exp(tl.load(x_ptr + at))", "torch-in-a-kernel"),
    ("x, z = tl.load(x_ptr + at), tl.dot(at[:, None], at)", "dot-of-other-shapes"),
])
def test_what_an_error_of_tritons_means_is_said_beside_the_readers_line(tmp_path: Path, line: str,
                                                                        diagnosis: str) -> None:
    result = checked(variant(tmp_path, ("x = tl.load(x_ptr + at)", line)))
    facts = dict(result.facts)
    assert result.diagnosis == diagnosis
    assert "InterpreterError" not in facts["came"]
    assert facts["at"].endswith(f": {line}")
    assert facts["idea"] == next(m.idea for m in ERRORS if m.name == diagnosis)


def test_every_meaning_of_an_error_is_that_of_some_wrong_answer() -> None:
    texts = "".join(path.read_text() for path in (ROOT / "tests/exercises/wrong_answers").glob("4.*/*.py"))
    missing = {m.name for m in ERRORS if f'DIAGNOSIS = "{m.name}"' not in texts}
    assert not missing


@interpreted
def test_the_readers_launcher_is_the_one_that_is_called(tmp_path: Path) -> None:
    path = variant(tmp_path, ("out = torch.empty_like(x)", "out = torch.empty_like(y) if len(x) else 0"),
                   ("    add_kernel[", "    print('launching')\n    add_kernel["))
    assert checked(path).passed
    without = variant(tmp_path, ("def add(", "def add_all("))
    assert checked(without).diagnosis == "missing"
    other = variant(tmp_path, ("def add(x, y, block=1024)", "def add(x, y)"), ("// block", "// 2"), ("=block", "=2"))
    assert checked(other).diagnosis == "signature"


@interpreted
def test_a_kernels_parameters_stay_as_they_were(tmp_path: Path) -> None:
    path = variant(tmp_path, ("(x_ptr, y_ptr, out_ptr, BLOCK: tl", "(x_ptr, y_ptr, z_ptr, BLOCK: tl"),
                   ("store(out_ptr", "store(z_ptr"))
    facts = dict(checked(path).facts)
    assert facts["expected"] == "add_kernel(x_ptr, y_ptr, out_ptr, BLOCK)"
    assert facts["came"] == "add_kernel(x_ptr, y_ptr, z_ptr, BLOCK)"


@interpreted
def test_kernel_and_launcher_are_exchanged_together(clone: Workspace) -> None:
    from minillm.kernels import puzzles

    before = puzzles.add, puzzles.add_kernel
    clone.mine.mkdir()
    path = clone.file(step4.STEP)
    path.parent.mkdir()
    path.write_text(build.solution(step4.STEP).replace("programs = len(x) // block", "programs = len(x) // block + 0"))
    report = exchange.exchange(ids=["4.1"], place=clone)
    try:
        assert report.lines()[0] == "yours: 4.1 add_kernel"
        assert puzzles.add.__code__.co_filename == puzzles.add_kernel.fn.__code__.co_filename == str(path)
        assert puzzles.add(torch.ones(4), torch.ones(4), 2).tolist() == [2, 2, 2, 2]
        # the others of the file are ours again
        assert puzzles.add.__globals__["gaps_kernel"] is puzzles.gaps_kernel
    finally:
        report.undo()
    assert (puzzles.add, puzzles.add_kernel) == before


@interpreted
def test_a_function_within_a_kernel_is_exchanged_without_a_launcher(clone: Workspace) -> None:
    from minillm.kernels import flash_attention, paged_decode

    before = flash_attention.attend_tile, paged_decode.find_keys
    clone.file(step4.STEP).parent.mkdir(parents=True)
    clone.file(step4.STEP).write_text(build.solution(step4.STEP)
                                      .replace("return new_best, total, out", "return new_best, total, 2 * out"))
    x = torch.ones(1, 1, 64)
    report = exchange.exchange(ids=["4.11", "4.12"], place=clone)
    try:
        assert report.lines()[0] == "yours: 4.11 attend_tile, 4.12 find_keys"
        assert flash_attention.attend_tile is not before[0]
        assert flash_attention.flash_attention(x, x, x, [1], [1], 1.0).unique().tolist() == [2]
    finally:
        report.undo()
    assert flash_attention.flash_attention(x, x, x, [1], [1], 1.0).unique().tolist() == [1]
    assert (flash_attention.attend_tile, paged_decode.find_keys) == before


EXCHANGED_COMPILED = """
from minillm.course import exchange
from minillm.kernels.flash_attention import flash_kernel

assert flash_kernel.cache_key
flash_kernel.hash = None  # Triton 3.6 leaves the constants of callees out of a first key
keys = [flash_kernel.cache_key]
flash_kernel.device_caches["a GPU"] = "compiled"
report = exchange.exchange(ids=["4.11"])
assert not flash_kernel.device_caches
keys.append(flash_kernel.cache_key)
flash_kernel.device_caches["a GPU"] = "compiled with the reader's"
report.undo()
assert not flash_kernel.device_caches
keys.append(flash_kernel.cache_key)
assert keys[0] == keys[2] != keys[1]
"""


def test_a_kernel_that_was_compiled_is_compiled_again_with_the_readers_function(
        clone: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.file(step4.STEP).parent.mkdir(parents=True)
    clone.file(step4.STEP).write_text(build.solution(step4.STEP))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    subprocess.run([sys.executable, "-c", EXCHANGED_COMPILED], check=True, timeout=60)


def test_what_stands_in_for_a_function_finds_there_what_was_there_before() -> None:
    module = ModuleType("kernels")
    module.double = ours = lambda x: 2 * x
    with in_place_of(module, "double", lambda x: ("theirs", module.double(x))):
        assert [module.double(1), module.double(2)] == [("theirs", 2), ("theirs", 4)]
    assert module.double is ours


def test_reset_puts_the_launcher_back_too(clone: Workspace) -> None:
    stub = build.stub(step4.STEP)
    path = clone.file(step4.STEP)
    path.parent.mkdir(parents=True)
    spoilt = stub.replace('raise NotImplementedError("exercise 4.1")', "pass").replace("len(x) // block", "1")
    path.write_text(spoilt.replace('raise NotImplementedError("exercise 4.2")', "pass"))
    workspace.reset(clone, ADD)
    assert path.read_text() == stub.replace('raise NotImplementedError("exercise 4.2")', "pass")


def test_a_marked_part_of_a_kernel_is_blank_and_the_rest_stays() -> None:
    kernel = build.stub(step4.STEP).split("def matmul_kernel")[1].split("\n\n\n")[0]
    assert "acc = tl.zeros" in kernel
    assert "tl.dot" not in kernel
    assert kernel.index("acc = tl.zeros") < kernel.index('raise NotImplementedError("exercise 4.5")')
    assert kernel.index("raise") < kernel.index("tl.store(out_ptr")


def test_the_parts_of_a_step_have_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    def exercise(number: int, name: str, **more: object) -> Exercise:
        target = Target.parse(f"minillm.course.hunts:{name}")
        return Exercise(f"9.{number}", (target,), "Title", 5, 1, "Much.", ("a", "b", "c"), "Look.", "Here", (), **more)

    monkeypatch.setattr(catalogue, "EXERCISES", (
        exercise(1, "smallest_sizes", core=False, warm_up=True), exercise(2, "smallest_prompts"),
        exercise(3, "smallest_crowd", core=False)))
    monkeypatch.setattr(catalogue, "STEPS", {9: Step(9, "invented", "invented")})
    text = build.stub(catalogue.STEPS[9])
    heads = ("# Warm-up: ", "# 9.1 ", "# The core ", "# 9.2 ", "# Further: ", "# 9.3 ")
    assert [text.index(head) for head in heads] == sorted(text.index(head) for head in heads)
    kept = progress.Progress()
    assert kept.next().id == "9.2"
    assert kept.next(catalogue.EXERCISES[0]).id == "9.1"
    kept.of(catalogue.EXERCISES[0]).passed = True
    assert kept.next(catalogue.EXERCISES[0]).id == "9.2"


def test_without_triton_a_kernel_is_not_checked_and_says_so(no_triton: None) -> None:
    result = checked(RIGHT)
    assert (result.status, result.facts) == (running.SKIPPED, (("problem", "needs Triton, which runs on Linux"),))
    shown = Checked(ADD, result)
    assert telling.headline(shown) == "4.1 Puzzle: add two vectors: needs Triton, which runs on Linux"
    assert telling.details(shown) == []
    assert exchange.reason(result) == "needs Triton, which runs on Linux"


def test_without_triton_the_rest_of_a_file_is_loaded_and_exchanged(no_triton: None, clone: Workspace) -> None:
    path = clone.file(step4.STEP)
    path.parent.mkdir(parents=True)
    path.write_text(build.solution(step4.STEP))
    module = running.load_file(path)
    assert callable(module.add_kernel)
    assert callable(module.attend_tile)
    assert module.add_reference(torch.ones(2), torch.ones(2)).tolist() == [2, 2]
    running.borrow(module, ADD)  # there is nothing of ours to borrow
    with pytest.raises(ImportError):
        import triton  # noqa: F401
    with pytest.raises(ImportError):
        import minillm.kernels.puzzles  # noqa: F401
    with pytest.raises(ImportError):
        from minillm.kernels import puzzles  # noqa: F401


def test_without_triton_all_checks_of_a_step_are_found(no_triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "tests" / "exercises").glob("step4*.py"):
        monkeypatch.setitem(sys.modules, f"minillm_checks_{path.stem}", sys)  # so that it is gone after the test
        monkeypatch.delitem(sys.modules, f"minillm_checks_{path.stem}")
    for exercise in step4.EXERCISES:
        assert running.load_check(ROOT, exercise).exercise == exercise.id


def test_with_triton_nothing_stands_in(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text("import triton\n\nVERSION = triton.__version__\n")
    assert running.load_file(path).VERSION


@pytest.mark.parametrize(("statuses", "code"), [
    ([running.SKIPPED], 0), ([running.PASSED, running.SKIPPED], 0), ([running.SKIPPED, running.FAILED], 1)])
def test_what_cannot_run_here_is_no_failure(clone: Workspace, capsys: pytest.CaptureFixture[str],
                                            monkeypatch: pytest.MonkeyPatch, statuses: list[str], code: int) -> None:
    def results(place: Workspace, exercises: list[Exercise]) -> list[Checked]:
        facts = {running.SKIPPED: (("problem", "needs Triton, which runs on Linux"),)}
        return [Checked(e, running.Result(e.id, status, None, facts.get(status, ())))
                for e, status in zip(exercises, statuses)]

    monkeypatch.setattr(checking, "check", results)
    assert cli.main(["check", *["0.1", "1.1"][: len(statuses)]]) == code
    out = capsys.readouterr().out
    assert out.count(": needs Triton, which runs on Linux\n") == 1
    assert "hint" not in out or code == 1
    kept = progress.load(clone)
    assert [kept.of(catalogue.find(name)).checks for name in ("0.1", "1.1")][: len(statuses)] == [
        int(status != running.SKIPPED) for status in statuses]


def test_a_check_interprets_kernels_also_where_there_is_a_gpu() -> None:
    assert checking._environment()["TRITON_INTERPRET"] == "1"


def test_a_picture_comes_out_of_the_process_and_is_shown(write: Callable, clone: Workspace,
                                                         capsys: pytest.CaptureFixture[str],
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    check = clone.root / "tests" / "exercises" / "step0.py"
    check.write_text(check.read_text() + "\n\nfrom dataclasses import replace\n\n"
                     "CHECKS = (replace(CHECKS[0], draw=lambda ours, theirs, args: ['  x   rr.', 'y']),)\n")
    write("0.1", "return 1.0")
    assert cli.main(["check", "0.1"]) == 1
    assert "\n\n    x   rr.\n  y\n\nnext: " in capsys.readouterr().out
    assert cli.main(["check", "0.1", "--json"]) == 1
    assert '"picture": [\n      "  x   rr.",\n      "y"\n    ]' in capsys.readouterr().out
