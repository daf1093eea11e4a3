"""What a check is worth: every wrong answer gets its diagnosis, every right one passes, the stub fails."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from minillm.course import catalogue, running
from minillm.course.exercise import Exercise

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "tests" / "exercises"
EXERCISES = pytest.mark.parametrize("exercise", catalogue.EXERCISES, ids=lambda e: e.id)


def answers(kind: str, exercise: Exercise) -> list[Path]:
    return sorted((ANSWERS / f"{kind}_answers" / exercise.id).glob("*.py"))


def declared(path: Path) -> str | None:
    """The DIAGNOSIS that a wrong answer says it must get."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "DIAGNOSIS":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} declares no DIAGNOSIS")


def checked(exercise: Exercise, path: Path) -> running.Result:
    if exercise.needs_triton and torch.cuda.is_available():
        pytest.skip("kernels are compiled in this process; minillm check interprets them in one of its own")
    return running.run(exercise, running.load_check(ROOT, exercise), path)


@EXERCISES
def test_wrong_answers_get_the_diagnosis_that_they_declare(exercise: Exercise) -> None:
    for path in answers("wrong", exercise):
        result = checked(exercise, path)
        assert (result.status, result.diagnosis) == (running.FAILED, declared(path)), (path.name, result.facts)


@EXERCISES
def test_right_answers_pass_however_they_are_written(exercise: Exercise) -> None:
    for path in answers("right", exercise):
        result = checked(exercise, path)
        assert result.passed, (path.name, result.facts)


@EXERCISES
def test_there_are_enough_answers_and_every_named_mistake_has_one(exercise: Exercise) -> None:
    wrong = answers("wrong", exercise)
    assert len(wrong) >= 4
    assert len(answers("right", exercise)) >= 2
    named = {mistake.name for mistake in running.load_check(ROOT, exercise).mistakes}
    assert named <= {declared(path) for path in wrong}


@EXERCISES
def test_the_untouched_stub_is_not_started_and_the_solution_passes(exercise: Exercise) -> None:
    filename = catalogue.step_of(exercise).filename
    stub = checked(exercise, ROOT / "exercises" / filename)
    assert (stub.status, stub.diagnosis) == (running.NOT_STARTED, "not-written")
    assert exercise.targets[0].reader_name in dict(stub.facts)["to write"]
    assert checked(exercise, ROOT / "solutions" / filename).passed


@EXERCISES
def test_no_message_is_a_dump(exercise: Exercise) -> None:
    """A few numbers and a few words, whatever goes wrong; an idea wherever a mistake is named."""
    named = {mistake.name for mistake in running.load_check(ROOT, exercise).mistakes}
    for path in answers("wrong", exercise):
        result = checked(exercise, path)
        assert result.facts
        for label, text in result.facts:
            assert len(text) <= 330, (path.name, label, text)
            assert "tensor(" not in text
            assert "Sequence(seq_id=" not in text
            assert "\n" not in text
        assert len(result.picture) <= 12
        assert all(len(line) <= 100 for line in result.picture)
        assert (result.diagnosis in named) <= ("idea" in dict(result.facts))


def test_the_packages_functions_are_back_after_a_check() -> None:
    exercise = catalogue.find("0.1")
    before = exercise.targets[0].resolve()
    checked(exercise, answers("wrong", exercise)[0])
    checked(exercise, answers("right", exercise)[0])
    assert exercise.targets[0].resolve() is before
    assert before(200.0, 30.0, 100.0, 10.0) == 3.0


def test_a_swallowed_call_of_the_packages_function_is_still_seen(tmp_path: Path) -> None:
    path = tmp_path / "sly.py"
    path.write_text("from minillm.measure import cost\n\n\n"
                    "def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):\n"
                    "    try:\n"
                    "        return cost.roofline_seconds(flops, bytes_moved, peak_flops, bandwidth)\n"
                    "    except Exception:\n"
                    "        return max(flops / peak_flops, bytes_moved / bandwidth)\n")
    result = checked(catalogue.find("0.1"), path)
    assert result.diagnosis == "forbidden"
    assert "this is the function you are writing" in dict(result.facts)["problem"]


def test_where_nothing_fits_nothing_is_guessed() -> None:
    exercise = catalogue.find("1.1")
    result = checked(exercise, ANSWERS / "wrong_answers" / "1.1" / "in_milliseconds.py")
    assert [label for label, _ in result.facts] == ["case", "input", "expected", "came", "where"]


def test_one_exercises_mistake_is_not_anothers(tmp_path: Path) -> None:
    """1.6 calls causal_attention, which the reader has wrong: 1.6 is checked with the package's."""
    step = catalogue.STEPS[1].filename
    text = (ROOT / "solutions" / step).read_text()
    wrong = tmp_path / step
    wrong.write_text(text.replace("weights = torch.softmax(scores, dim=-1)", "weights = scores"))
    assert wrong.read_text() != text
    assert not checked(catalogue.find("1.5"), wrong).passed
    assert checked(catalogue.find("1.6"), wrong).passed
