"""Whatever the reader's code does, the check says what it was, and the next exercise is checked all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.course import catalogue, checking, running, workspace
from minillm.course.checking import Checked
from minillm.course.workspace import Workspace

RIGHT = "return max(flops / peak_flops, bytes_moved / bandwidth)"
FILE = "step0_meet_the_machine.py"

# body of 0.1, diagnosis, words that the facts must hold; @2 is the body's second line, | stands between alternatives
BEHAVIOURS = [
    ("while True:\n    pass", "timeout", ["still running after 1 seconds", f"{FILE}, line @", "while True:|pass"]),
    ("return flops / bandwith", "exception", ["NameError: name 'bandwith' is not defined", f"{FILE}, line @1: return",
                                              "return flops / bandwith"]),
    ("return None", "none-returned", ["expected", "3.0", "None", "Is a return missing"]),
    ("return [1.0, 2.0]", "type", ["3.0, a number", "[1.0, 2.0], a list"]),
    ("import sys\nsys.exit('done')", "exit", ["SystemExit: done", f"{FILE}, line @2: sys.exit"]),
    ("import os\nos._exit(3)", "exit", ["ended Python itself, with exit code 3"]),
    ("while True:\n    print('x' * 100_000)", "output", ["more than 1 MB", "print left inside a loop"]),
    ("kept = []\nwhile True:\n    kept.append(bytearray(10**8))", "memory", ["more than 1 GiB", "grow without end"]),
    ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "killed", ["SIGSEGV"]),
    ("return roofline_seconds(flops, bytes_moved, peak_flops, bandwidth)", "exception", ["RecursionError"]),
    ("raise KeyboardInterrupt", "exit", ["KeyboardInterrupt"]),
    ("return input('seconds? ')", "exception", ["EOFError"]),
    ("raise ValueError('a\\nb' * 5000)", "exception", ["ValueError: a"]),
]


def check_one(clone: Workspace, exercise_id: str = "0.1", seconds: float = 5.0) -> Checked:
    (checked,) = checking.check(clone, [catalogue.find(exercise_id)], seconds)
    return checked


def text_of(checked: Checked) -> str:
    return "\n".join(f"{label} {text}" for label, text in checked.result.facts)


@pytest.mark.parametrize(("body", "diagnosis", "words"), BEHAVIOURS)
def test_what_a_function_does_is_said(write: Callable, clone: Workspace, monkeypatch: pytest.MonkeyPatch, body: str,
                                      diagnosis: str, words: list[str]) -> None:
    monkeypatch.setattr(checking, "MEMORY_BYTES", 2**30)
    above = write("0.1", body).read_text().split(body.splitlines()[0])[0].count("\n")
    checked = check_one(clone, seconds=1.0 if diagnosis == "timeout" else 20.0)
    assert (checked.result.status, checked.result.diagnosis) == (running.FAILED, diagnosis), text_of(checked)
    for word in words:
        word = re.sub(r"@(\d)", lambda m: str(above + int(m.group(1))), word).replace("@", "")
        assert any(w in text_of(checked) for w in word.split("|")), (word, text_of(checked))
    assert all(len(text) < 300 for _, text in checked.result.facts)


# the whole file of step 0, diagnosis, words
FILES = [
    ("def roofline_seconds(flops:\n    return 1\n", "syntax", [f"{FILE} is no Python yet",
                                                             "line 1: def roofline_seconds(flops:"]),
    ("x = 1\n", "missing", [f"{FILE} has no roofline_seconds", "minillm reset 0.1"]),
    ("import nonsense_module\n", "import", ["stops while it is loaded", "ModuleNotFoundError", "line 1"]),
    ("while True:\n    pass\n", "timeout", ["still running"]),
    ("import sys\nsys.exit()\n", "import", ["SystemExit"]),
    ("roofline_seconds = 3\n", "signature", ["expected a function"]),
    ("def roofline_seconds(flops, bandwidth):\n    return 1\n", "signature", ["roofline_seconds(flops, bandwidth)"]),
    (b"\xff\xfe\x00\x01", "syntax", ["not text"]),
    ("", "missing", ["has no roofline_seconds"]),
    (None, "deleted", ["is not there", "minillm reset step0"]),
]


@pytest.mark.parametrize(("content", "diagnosis", "words"), FILES)
def test_what_a_file_is_is_said(clone: Workspace, content: str | bytes | None, diagnosis: str,
                                words: list[str]) -> None:
    workspace.sync(clone)
    path = clone.file(catalogue.STEPS[0])
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    checked = check_one(clone, seconds=1.0 if diagnosis == "timeout" else 20.0)
    assert (checked.result.status, checked.result.diagnosis) == (running.FAILED, diagnosis), text_of(checked)
    for word in words:
        assert word in text_of(checked)


def test_a_right_answer_passes_and_what_it_prints_is_shown(write: Callable, clone: Workspace) -> None:
    write("0.1", f"for i in range(30):\n    print('looking at', i)\n{RIGHT}")
    checked = check_one(clone)
    assert checked.result == running.Result("0.1", running.PASSED)
    assert checked.printed[0] == "looking at 0"
    assert checked.printed[-1].endswith("lines more)")
    assert len(checked.printed) <= checking.SHOWN_LINES + 1


def test_a_process_that_dies_takes_nothing_else_along(write: Callable, clone: Workspace) -> None:
    write("0.1", "import os\nos._exit(0)")
    write("1.7", "first, second = x.chunk(2, dim=-1)\n"
                 "cos, sin = cos[:, None], sin[:, None]\n"
                 "return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)")
    results = checking.check(clone, catalogue.select(["0.1", "1.2", "1.7"]))
    assert [(c.exercise.id, c.result.diagnosis) for c in results] == [
        ("0.1", "exit"), ("1.2", "not-written"), ("1.7", None)]
    assert results[-1].result.passed


def test_a_check_leaves_nothing_behind(write: Callable, clone: Workspace, tmp_path: Path) -> None:
    write("0.1", f"open('left.txt', 'w').write('x')\n{RIGHT}")
    before = sorted(tmp_path.rglob("*"))
    assert check_one(clone).result.passed
    assert sorted(tmp_path.rglob("*")) == before


def test_a_check_of_an_exercise_without_tensors_needs_no_torch(write: Callable, clone: Workspace) -> None:
    write("0.1", f"import sys\nprint('torch' in sys.modules)\n{RIGHT}")
    assert set(check_one(clone).printed) == {"False"}


def test_a_check_that_cannot_start_is_our_defect_and_says_so(clone: Workspace) -> None:
    workspace.sync(clone)
    (clone.root / "tests" / "exercises" / "step0.py").write_text("1 / 0\n")
    with pytest.raises(checking.CheckError, match=r"0\.1 could not start: ZeroDivisionError"):
        check_one(clone)
