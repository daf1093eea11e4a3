"""A clone of what a reader works with: stubs, checks, lessons, in a folder of its own, progress included."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.course import catalogue, workspace
from minillm.course.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A fresh clone, the current folder inside it, and an empty $MINILLM_HOME."""
    root = tmp_path / "clone"
    shutil.copytree(ROOT / "exercises", root / "exercises", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "exercises").mkdir(parents=True)
    for path in (ROOT / "tests" / "exercises").glob("step*.py"):
        shutil.copy(path, root / "tests" / "exercises")
    (root / "notebooks").mkdir()
    (root / "notebooks" / "00_meet_the_machine.ipynb").write_text('{"cells": []}')
    monkeypatch.chdir(root)
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    return workspace.find()


@pytest.fixture
def write(clone: Workspace) -> Callable[[str, str], Path]:
    """Give an exercise a body in mine/, the rest of its file as it was: write("0.1", "return 1.0")."""
    def put(exercise_id: str, body: str) -> Path:
        workspace.sync(clone)
        path = clone.file(catalogue.step_of(catalogue.find(exercise_id)))
        blank = f'    raise NotImplementedError("exercise {exercise_id}")'
        text = path.read_text(encoding="utf-8")
        assert blank in text
        path.write_text(text.replace(blank, "\n".join(f"    {line}" for line in body.splitlines())), encoding="utf-8")
        return path

    return put


def solved(clone: Workspace) -> None:
    """Put the solutions into mine/."""
    workspace.sync(clone)
    for step in catalogue.STEPS.values():
        shutil.copy(ROOT / "solutions" / step.filename, clone.file(step))
