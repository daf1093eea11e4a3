"""mine/: copied once, updated only where untouched, reset with a backup; and the progress beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.course import build, catalogue, checking, progress, workspace
from minillm.course.catalogue import CourseError
from minillm.course.progress import Progress, Record
from minillm.course.workspace import Workspace

STEP = catalogue.STEPS[1]


def test_what_is_missing_is_copied_once(clone: Workspace) -> None:
    notes = workspace.sync(clone)
    names = [f"exercises/{step.filename}" for step in catalogue.STEPS.values()]
    assert notes == [f"copied {n} to mine/{n}" for n in [*names, "notebooks/00_meet_the_machine.ipynb"]]
    assert clone.file(STEP).read_text() == (clone.root / "exercises" / STEP.filename).read_text()
    assert workspace.sync(clone) == []


def test_an_update_replaces_untouched_copies_and_keeps_what_was_written(clone: Workspace, write: Callable) -> None:
    mine = write("1.1", "return 1, None, []")
    kept = mine.read_text()
    for name in (STEP.filename, catalogue.STEPS[0].filename):
        stub = clone.root / "exercises" / name
        stub.write_text(stub.read_text() + "\n# a newer stub\n")
    notes = workspace.sync(clone)
    assert notes == [f"updated mine/exercises/{catalogue.STEPS[0].filename}: you had not changed it"]
    assert mine.read_text() == kept
    assert "a newer stub" in clone.file(catalogue.STEPS[0]).read_text()
    assert workspace.sync(clone) == []


def test_regenerating_with_mine_half_solved_changes_nothing_of_it(clone: Workspace, write: Callable) -> None:
    write("1.1", "return 1, None, []")
    before = {p: p.read_bytes() for p in clone.mine.rglob("*.py")}
    build.write(clone.root)
    workspace.sync(clone)
    assert {p: p.read_bytes() for p in clone.mine.rglob("*.py")} == before


@pytest.mark.parametrize("state", ["{", "[]", '{"exercises/x.py": 3}', None])
def test_a_lost_state_loses_nothing_of_the_readers(clone: Workspace, write: Callable, state: str | None) -> None:
    mine = write("1.1", "return 1, None, []")
    path = clone.mine / ".state.json"
    path.unlink() if state is None else path.write_text(state)
    kept = mine.read_text()
    workspace.sync(clone)
    assert mine.read_text() == kept
    stub = clone.root / "exercises" / STEP.filename
    stub.write_text(stub.read_text() + "\n# a newer stub\n")
    workspace.sync(clone)
    assert mine.read_text() == kept


def test_a_deleted_copy_stays_deleted_until_it_is_asked_for(clone: Workspace) -> None:
    workspace.sync(clone)
    clone.file(STEP).unlink()
    assert workspace.sync(clone) == []
    assert not clone.file(STEP).exists()
    assert len(workspace.sync(clone, restore=True)) == 1
    assert clone.file(STEP).exists()


def test_reset_puts_one_stub_back_and_keeps_a_backup(clone: Workspace, write: Callable) -> None:
    write("1.1", "return 1, None, []")
    path = write("1.2", "return 2.0, 3.0")
    before = path.read_text()
    told, backup = workspace.reset(clone, catalogue.find("1.1"))
    assert told == path
    assert backup.read_text() == before
    assert path.read_text() == before.replace("return 1, None, []", 'raise NotImplementedError("exercise 1.1")')
    _, second = workspace.reset(clone, catalogue.find("1.2"))
    assert second != backup
    assert path.read_text() == (clone.root / "exercises" / STEP.filename).read_text()


def test_reset_brings_a_deleted_function_back_so_that_it_runs(clone: Workspace) -> None:
    workspace.sync(clone)
    clone.file(STEP).write_text("import math\n")
    workspace.reset(clone, catalogue.find("1.3"))
    (checked,) = checking.check(clone, [catalogue.find("1.3")])
    assert checked.result.diagnosis == "not-written"


def test_reset_of_a_broken_file_says_where_and_touches_nothing(clone: Workspace) -> None:
    workspace.sync(clone)
    path = clone.file(STEP)
    path.write_text("def broken(:\n")
    with pytest.raises(CourseError, match=r"line 1: .*expected Python.*minillm reset step1"):
        workspace.reset(clone, catalogue.find("1.1"))
    assert path.read_text() == "def broken(:\n"
    _, backup = workspace.reset_step(clone, STEP)
    assert backup.read_text() == "def broken(:\n"
    assert path.read_text() == (clone.root / "exercises" / STEP.filename).read_text()


def test_outside_the_repository_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workspace, "__file__", str(tmp_path / "site" / "minillm" / "course" / "workspace.py"))
    with pytest.raises(CourseError, match="no exercises in .* expected to be inside the folder that you cloned"):
        workspace.find()


def test_the_published_lessons_see_the_published_stubs(clone: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone.root / "notebooks")
    published = workspace.find()
    assert published.committed
    assert published.exercises == clone.root / "exercises"
    assert workspace.sync(published) == []
    workspace.sync(clone)
    monkeypatch.chdir(clone.mine / "notebooks")
    assert workspace.find() == clone


def test_progress_is_kept(clone: Workspace) -> None:
    kept = progress.load(clone)
    assert kept == Progress()
    exercise = catalogue.find("1.1")
    kept.of(exercise).passed = True
    kept.guesses["1.ttft512"] = 0.5
    kept.speeds["step 1"] = (10.0, 20.0)
    progress.save(clone, kept)
    assert progress.load(clone) == kept
    assert kept.next() is catalogue.find("0.1")


def test_progress_is_of_one_clone(clone: Workspace, tmp_path: Path) -> None:
    kept = Progress({"1.1": Record(passed=True)})
    progress.save(clone, kept)
    assert progress.load(Workspace(tmp_path / "second")) == Progress()
    assert progress.path(clone).is_relative_to(clone.mine)  # which git ignores
    # where it was kept for all clones together: whose it was is not known, so it is left alone
    old = tmp_path / "home" / "progress.json"
    old.parent.mkdir()
    old.write_text('{"records": {"2.1": {"passed": true, "checks": 1, "hints": 0}}, "guesses": {}, "speeds": {}}')
    assert progress.load(clone) == kept
    assert old.exists()


CORRUPT = ["", "{", "null", "[]", '{"records": 3}', '{"records": {"1.1": {}}, "guesses": {}, "speeds": {}}',
           '{"records": {}, "guesses": {"a": "b"}, "speeds": {}}', '{"records": {}, "guesses": {}, "speeds": {"s": 1}}',
           "\x00\x01"]


@pytest.mark.parametrize("text", CORRUPT)
def test_a_corrupt_file_is_put_aside_and_said_once(clone: Workspace, text: str) -> None:
    path = progress.path(clone)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    first = progress.load(clone)
    assert "could not be read" in first.note
    assert first.records == {}
    assert [p.read_text() for p in path.parent.iterdir()] == [text]
    assert progress.load(clone).note is None
    progress.save(clone, first)
    path.write_bytes(b"\xff\xfe")
    assert "unreadable-2" in progress.load(clone).note


def test_the_next_exercise_is_the_first_core_one_not_passed() -> None:
    passed = {e.id: Record(passed=True) for e in catalogue.EXERCISES if e.core}
    assert Progress(passed).next() is None
    del passed["1.3"]
    assert Progress(passed).next().id == "1.3"


@pytest.mark.parametrize(("passed", "after", "following"), [
    ("2.1", "2.1", "2.2"), ("2.1 2.2", "2.1", "2.3"),
    ("4.6", "4.6", "4.7"), ("4.3", "4.3", "4.4"), ("4.1", "4.5", "4.5"), ("4.11", "4.11", "0.1"),
    ("0.1 4.11 4.14", "4.14", "1.1"), ("3.5", "3.5", "4.7"), ("", "3.5", "3.5"), ("", "9.9", "0.1")])
def test_the_next_exercise_follows_the_one_checked_last(passed: str, after: str, following: str) -> None:
    kept = Progress({name: Record(passed=True) for name in passed.split()}, last=after)
    assert kept.next().id == following
    if after != "9.9":
        assert Progress(kept.records).next(catalogue.find(after)).id == following
