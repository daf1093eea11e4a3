"""The reader's commands, as somebody meets them for the first time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest
from conftest import ROOT, solved

from minillm import cli, course
from minillm.course import catalogue, progress
from minillm.course.workspace import Workspace

RIGHT = "return max(flops / peak_flops, bytes_moved / bandwidth)"
CORE = sum(e.core for e in catalogue.EXERCISES)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(clone: Workspace, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command line in the clone: the exit code, stdout and stderr."""
    def run_line(line: str) -> Ended:
        capsys.readouterr()
        code = cli.main(line.split())
        return Ended(code, *capsys.readouterr())

    return run_line


def test_a_first_visit(run: Callable, write: Callable) -> None:
    """progress, check on the stub, three hints, a wrong answer, the solution: each says what to do next."""
    shown = run("progress")
    assert shown.code == 0
    assert "copied exercises/step0_meet_the_machine.py to mine/exercises/step0_meet_the_machine.py" in shown.err
    assert f"0 of {CORE} passed" in shown.out
    assert "next: 0.1 The time a roofline allows (about 5 minutes), in mine/exercises/step0_meet" in shown.out

    stub = run("check 0.1")
    assert (stub.code, stub.err) == (1, "")
    assert stub.out.startswith("0.1 The time a roofline allows: not written yet\n")
    assert "roofline_seconds, line " in stub.out
    assert stub.out.endswith("minillm hint 0.1 (hint 1 of 3)\n")

    refused = run("solution 0.1")
    assert refused.code == 1
    assert "opens once yours passes, or after 3 more hints (minillm hint 0.1)" in refused.out
    for number, kind in enumerate(("a question", "what each line does", "nearly the answer"), start=1):
        hint = run("hint 0.1")
        assert hint.code == 0
        assert f"hint {number} of 3: {kind}" in hint.out
    assert "minillm solution 0.1 is open to you" in hint.out
    assert run("hint 0.1").out.count("of 3") == 3

    path = write("0.1", "return flops / peak_flops + bytes_moved / bandwidth")
    wrong = run("check 0.1")
    assert wrong.code == 1
    assert wrong.out.startswith("0.1 The time a roofline allows: not yet\n")
    for words in ("2 s of arithmetic, 3 s of transfers", "flops=200.0", "expected  3.0", "came      5.0", "not after"):
        assert words in wrong.out

    path.write_text((ROOT / "solutions" / path.name).read_text())
    right = run("check 0.1")
    assert right.code == 0
    assert right.out.startswith("0.1 The time a roofline allows: passed\n")
    assert "next: 1.1 TTFT, TPOT and ITL from timestamps" in right.out
    assert f"1 of {CORE} passed" in run("progress").out


def test_a_solution_is_shown_beside_the_readers(run: Callable, write: Callable,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    write("0.1", "slow = bytes_moved / bandwidth\nreturn slow if slow > flops / peak_flops else flops / peak_flops")
    assert run("check 0.1").code == 0
    for columns in ("150", "70"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = run("solution 0.1")
        assert shown.code == 0
        for words in ("yours", "ours", "slow = bytes_moved / bandwidth", "return max(compute_seconds, memory_seconds)",
                      "notice"):
            assert words in shown.out
        beside = any("yours" in line and "ours" in line.split("yours")[1] for line in shown.out.splitlines())
        assert beside == (columns == "150")


def test_a_whole_step_is_checked_and_the_first_failure_explained(run: Callable, write: Callable) -> None:
    write("1.1", "return token_times[0], None, []")
    shown = run("check step1")
    assert shown.code == 1
    assert [line.split(" ")[0] for line in shown.out.splitlines()[:8]] == [e.id for e in catalogue.of_step(1)]
    assert "how long after the request came is it?" in shown.out
    assert shown.out.endswith("next: minillm hint 1.1 (hint 1 of 3)\n")


def test_check_without_a_name_takes_the_next_one(run: Callable, write: Callable) -> None:
    write("0.1", RIGHT)
    assert run("check").out.startswith("0.1 ")
    assert run("check").out.startswith("1.1 ")


def test_what_is_next_follows_the_exercise_checked_last(run: Callable, clone: Workspace) -> None:
    solved(clone)
    assert "next: 4.7 " in run("check 4.6").out
    assert "next: 4.7 " in run("progress").out
    assert run("check").out.startswith("4.7 ")
    assert "next: 3.1 " in run("check step2").out
    run("reset 2.3")
    run("check 2.3")  # a stub was not tried
    assert run("check").out.startswith("3.1 ")


def test_json(run: Callable, write: Callable) -> None:
    write("0.1", "return flops / peak_flops")
    ended = run("check 0.1 --json")
    (result,) = json.loads(ended.out)
    assert ended.code == 1
    assert (result["status"], result["diagnosis"], result["expected"]) == ("failed", "arithmetic-only", "3.0")
    state = json.loads(run("progress --json").out)
    assert state["next"] == "0.1"
    assert [e["exercise"] for e in state["exercises"]] == [e.id for e in catalogue.EXERCISES]


@pytest.mark.parametrize(("line", "words"), [
    ("check 1.11", "no exercise '1.11': expected 1.1"),
    ("check step9", "no exercise 'step9': expected step"),
    ("hint nonsense", "expected one of 0.1"),
    ("solution 7.7", "no exercise '7.7'"),
    ("reset 7.7", "no exercise '7.7'"),
])
def test_an_unknown_exercise_is_one_line_and_changes_nothing(run: Callable, clone: Workspace, line: str,
                                                             words: str) -> None:
    ended = run(line)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert not clone.mine.exists()


def test_reset_starts_again(run: Callable, write: Callable, clone: Workspace) -> None:
    path = write("0.1", RIGHT)
    assert run("check 0.1").code == 0
    ended = run("reset 0.1")
    assert ended.out == ("0.1 starts again in mine/exercises/step0_meet_the_machine.py; "
                         "what you had is in mine/backups/step0_meet_the_machine.1.py\n")
    assert RIGHT in (clone.mine / "backups" / "step0_meet_the_machine.1.py").read_text()
    assert path.read_text() == (clone.root / "exercises" / path.name).read_text()
    assert progress.load(clone).next().id == "0.1"
    assert run("reset step0").code == 0


def test_a_deleted_file_is_named_with_its_remedy(run: Callable, clone: Workspace) -> None:
    run("progress")
    clone.file(catalogue.STEPS[0]).unlink()
    shown = run("check 0.1")
    assert shown.code == 1
    assert "mine/exercises/step0_meet_the_machine.py is not there" in shown.out
    assert run("reset step0").code == 0
    assert run("check 0.1").out.startswith("0.1 The time a roofline allows: not written yet")
    assert run("mine").out == "mine/ is up to date\n"


def test_corrupt_progress_is_said_once_and_stops_nothing(run: Callable, clone: Workspace) -> None:
    path = progress.path(clone)
    path.parent.mkdir(parents=True)
    path.write_text("{{{")
    first = run("progress")
    assert first.code == 0
    assert "progress starts afresh" in first.err
    assert run("hint 0.1").err == ""
    assert "unreadable" not in run("progress").err


def test_the_face_in_a_notebook_never_raises(clone: Workspace, write: Callable, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    write("0.1", RIGHT)
    course.check("0.1")
    assert capsys.readouterr().out.startswith("0.1 The time a roofline allows: passed\n")
    assert progress.load(clone).of(catalogue.find("0.1")).passed
    assert course.guess("1.ttft512") is None
    assert course.guess("1.ttft512", 0.75) == 0.75
    assert course.guess("1.ttft512") == 0.75
    assert course.guess("1.ttft512", "fast") is None
    course.check("9.9")
    out = capsys.readouterr().out
    assert "guess: could not convert string to float" in out
    assert "check: no exercise '9.9'" in out
    monkeypatch.chdir(clone.root / "notebooks")
    course.check("0.1")
    course.guess("1.ttft512", 3.0)
    shown = capsys.readouterr()
    assert shown.out.startswith("0.1 The time a roofline allows: not written yet\n")
    assert shown.err == ""
    assert course.guess("1.ttft512") is None
    assert progress.load(clone).guesses == {"1.ttft512": 0.75}


def test_the_face_in_a_notebook_exchanges(clone: Workspace, write: Callable,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    from minillm.measure import cost

    write("0.1", f"print('called')\n{RIGHT}")
    capsys.readouterr()
    report = course.use_exercises()
    try:
        assert capsys.readouterr().out.startswith("yours: 0.1 roofline_seconds\n")
        assert cost.roofline_seconds(200.0, 30.0, 100.0, 10.0) == 3.0
        assert capsys.readouterr().out == "called\n"
    finally:
        report.undo()
    assert cost.roofline_seconds(200.0, 30.0, 100.0, 10.0) == 3.0
    assert capsys.readouterr().out == ""


def test_everything_solved_is_said(run: Callable, clone: Workspace) -> None:
    solved(clone)
    shown = run("check " + " ".join(f"step{number}" for number in catalogue.STEPS))
    assert shown.code == 0, shown.out
    assert shown.out.count(": passed\n") == len(catalogue.EXERCISES)
    assert "every core exercise has passed" in shown.out
    assert f"{CORE} of {CORE} passed" in run("progress").out
