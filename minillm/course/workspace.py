"""Where the reader's files are: the repository, and mine/ inside it, which git ignores.

mine/.state.json remembers what each file looked like when it was copied, so that an update replaces only untouched
copies; mine/.progress.json holds what was passed. The committed lessons (run from notebooks/) see the committed stubs
and nothing of mine/, so that their output is the same whoever runs them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from minillm.course import build, catalogue, source
from minillm.course.catalogue import CourseError
from minillm.course.exercise import Exercise, Step


@dataclass(frozen=True)
class Workspace:
    """A clone of the repository, as a reader sees it. `committed`: the lessons as published, not the reader's."""

    root: Path
    committed: bool = False

    @property
    def mine(self) -> Path:
        return self.root / "mine"

    @property
    def exercises(self) -> Path:
        return self.root / "exercises" if self.committed else self.mine / "exercises"

    def file(self, step: Step) -> Path:
        """The reader's file of a step."""
        return self.exercises / step.filename

    def shown(self, path: Path) -> str:
        """A path as messages print it: from the repository's root."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name


def find() -> Workspace:
    """The workspace around the current folder, else the one that the package lies in. CourseError if neither is one."""
    here = Path.cwd()
    package = Path(__file__).resolve().parents[2]
    for folder in (here, *here.parents, package):
        if (folder / "exercises").is_dir() and (folder / "tests" / "exercises").is_dir():
            lessons = folder / "notebooks"
            return Workspace(folder, committed=here == lessons or lessons in here.parents)
    raise CourseError(f"no exercises in {here} or above it: expected to be inside the folder that you cloned")


def _copies(workspace: Workspace) -> dict[str, Path]:
    """What belongs into mine/: its name there, and the file it is copied from."""
    root = workspace.root
    stubs = {f"exercises/{p.name}": p for p in sorted((root / "exercises").glob("step*.py"))}
    lessons = {f"notebooks/{p.name}": p for p in sorted((root / "notebooks").glob("*.ipynb"))}
    return stubs | lessons


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_state(workspace: Workspace) -> dict[str, str]:
    try:
        state = json.loads((workspace.mine / ".state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # every copy then counts as touched unless it equals its source: nothing of the reader's is lost
    return state if isinstance(state, dict) else {}


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def sync(workspace: Workspace, restore: bool = False) -> list[str]:
    """Bring mine/ up to date: copy what was never copied, replace what is untouched. Says what it did, a line each.

    A copy that the reader deleted stays deleted unless `restore`. A copy that the reader changed is never written.
    """
    if workspace.committed:
        return []
    state, notes = _read_state(workspace), []
    for name, origin in _copies(workspace).items():
        copy, data = workspace.mine / name, origin.read_bytes()
        new = _digest(data)
        if copy.exists():
            current = _digest(copy.read_bytes())
            if current == new or current != state.get(name):
                state[name] = new if current == new else state.get(name, "")
                continue
            notes.append(f"updated mine/{name}: you had not changed it")
        elif name in state and not restore:
            continue
        else:
            notes.append(f"copied {name} to mine/{name}")
        write_atomically(copy, data)
        state[name] = new
    text = json.dumps(state, indent=1, sort_keys=True)
    if state != _read_state(workspace):
        write_atomically(workspace.mine / ".state.json", text.encode())
    return notes


def reset(workspace: Workspace, exercise: Exercise) -> tuple[Path, Path | None]:
    """Put one exercise's stub back into the reader's file; the file, and the backup of it (None if it was deleted).

    The rest of the file stays as it is. Raises CourseError for a file that is no Python.
    """
    step = catalogue.step_of(exercise)
    path = workspace.file(step)
    if not path.exists():
        return reset_step(workspace, step)
    text = path.read_text(encoding="utf-8")
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise CourseError(f"{workspace.shown(path)}, line {error.lineno}: {error.msg}: expected Python; mend it, "
                          f"or start the whole file again with: minillm reset step{step.number}") from None
    backup = _back_up(workspace, path)
    for target in exercise.functions:
        text = _replaced(text, exercise, target.reader_name, build.function_lines(exercise, target, solved=False))
    write_atomically(path, text.encode())
    return path, backup


def _replaced(text: str, exercise: Exercise, name: str, stub: list[str]) -> str:
    """The text with the definition of `name` replaced by the stub, or the stub added at its end."""
    node = source.find(ast.parse(text), name)
    lines = text.splitlines()
    if node is None:
        missing = [line for line in build.import_lines(exercise) if line not in lines]
        lines += ["", "", *missing, *(["", ""] if missing else []), *stub]
    else:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        lines[first - 1 : node.end_lineno] = stub
    return "\n".join(lines) + "\n"


def reset_step(workspace: Workspace, step: Step) -> tuple[Path, Path | None]:
    """Put a step's whole stub back; the file, and the backup of what was there."""
    path = workspace.file(step)
    backup = _back_up(workspace, path) if path.exists() else None
    path.unlink(missing_ok=True)
    sync(workspace, restore=True)
    return path, backup


def _back_up(workspace: Workspace, path: Path) -> Path:
    """A numbered copy of a file in mine/backups."""
    folder = workspace.mine / "backups"
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + len(list(folder.glob(f"{path.stem}.*{path.suffix}")))
    backup = folder / f"{path.stem}.{number}{path.suffix}"
    backup.write_bytes(path.read_bytes())
    return backup
