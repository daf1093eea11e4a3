"""The structure holds: who imports whom, how long the core is, and that no file speaks of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "minillm"
# a folder imports only from those above it, and from kernels; the rest see everything
FLOORS = ["measure", "numerics", "attention", "model", "cache", "decoding", "compression", "speculation", "serving",
          "parallel"]
# what a reader reads to understand the engine, in order
CORE = ["model/config.py", "model/batch.py", "model/layers.py", "model/transformer.py", "attention/reference.py",
        "attention/backends.py", "cache/base.py", "cache/blocks.py", "cache/prefix.py", "cache/tables.py",
        "cache/paged.py", "decoding/sampling.py", "decoding/generate.py", "decoding/streaming.py", "serving/request.py",
        "serving/scheduler.py", "serving/executor.py", "serving/engine.py"]


def imports(path: Path) -> set[str]:
    """The minillm modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively: expected the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "minillm"}


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@pytest.mark.parametrize("floor", [f for f in FLOORS if (PACKAGE / f).is_dir()])
def test_a_folder_imports_only_from_floors_below_it(floor: str) -> None:
    allowed = {*FLOORS[: FLOORS.index(floor) + 1], "kernels"}
    for path in python_files(PACKAGE / floor):
        rooms = {name.split(".")[1] for name in imports(path)}
        assert rooms <= allowed, f"{path.relative_to(ROOT)} imports {sorted(rooms - allowed)}"


def test_kernels_import_nothing_of_ours_but_each_other() -> None:
    for path in python_files(ROOT / "kernels"):
        assert {name.split(".")[1] for name in imports(path)} <= {"kernels"}, path


def test_every_folder_of_the_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")}
    assert set(listed) == folders | {"minillm.kernels"}


def test_the_core_reading_path_is_short() -> None:
    lines = {name: len((PACKAGE / name).read_text().splitlines()) for name in CORE}
    assert sum(lines.values()) < 2500, lines


def test_every_module_says_what_it_is() -> None:
    for path in [*python_files(PACKAGE), *python_files(ROOT / "kernels")]:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} has no docstring"


def test_no_tracked_file_speaks_of_one_machine() -> None:
    """Paths of a home or a temporary folder belong to whoever ran something, not to the project."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert tracked
    pattern = re.compile(r"(?<![\w.])/(home|root|Users|work|tmp)/[\w.]+")
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".png",) or not path.is_file():
            continue
        found = pattern.search(path.read_text(errors="replace"))
        assert not found, f"{name} holds {found.group()}"
