"""Stubs and solutions are generated from the package's source, and the committed ones are up to date."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from minillm.course import build, catalogue, running, source
from minillm.course.exercise import Exercise, Step, Target

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "minillm"

MODULE = '''"""A module with a method and a partial blank."""

from __future__ import annotations

import math
import json as notation
from collections.abc import Sequence

LIMIT = 3


def helper(x):
    return x + LIMIT


class Pool:
    """Blocks."""

    def __init__(self, size: int) -> None:
        self.free = list(range(size))

    def allocate(self, count: int) -> list[int]:
        """Take blocks.

        Two lines.
        """
        # the last ones first
        return [self.free.pop() for _ in range(helper(count) - LIMIT)]

    def release_all(self, blocks: Sequence[int]) -> None:
        self.free.extend(blocks)


def partly(x: float) -> float:
    """Half of it is given."""
    y = math.sqrt(x)
    # exercise 9.3: blank
    y = y + 1
    y = y * 2
    # exercise 9.3: end
    return y
'''


def exercise(exercise_id: str, *targets: str) -> Exercise:
    return Exercise(exercise_id, tuple(map(Target.parse, targets)), "Title", 5, 1, "Something.", ("a", "b", "c"),
                    "Look.", "Section", ())


@pytest.fixture
def invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step 9 with two methods and a partial blank, its module importable."""
    (tmp_path / "invented_pool.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "EXERCISES", (
        exercise("9.1", "invented_pool:Pool.allocate"), exercise("9.2", "invented_pool:Pool.release_all"),
        exercise("9.3", "invented_pool:partly")))
    monkeypatch.setattr(catalogue, "STEPS", {9: Step(9, "invented", "invented")})
    yield tmp_path
    sys.modules.pop("invented_pool", None)


def test_the_committed_files_are_what_the_source_gives() -> None:
    for name, text in build.files().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name} is out of date: make exercises"
    for folder in ("exercises", "solutions"):
        assert {f"{folder}/{p.name}" for p in (ROOT / folder).glob("*.py")} <= set(build.files())


def test_writing_again_writes_nothing(tmp_path: Path) -> None:
    assert len(build.write(tmp_path)) == len(build.files())
    assert build.write(tmp_path) == []


def test_a_stub_keeps_signature_and_docstring_and_nothing_of_the_body() -> None:
    for step in catalogue.STEPS.values():
        stub, solution = ast.parse(build.stub(step)), ast.parse(build.solution(step))
        for target, exercise_id in [(t, e.id) for e in catalogue.of_step(step.number) for t in e.targets]:
            name = f"{target.reader_name}.{target.function}" if target.owner else target.reader_name
            blank, full = source.find(stub, name), source.find(solution, name)
            assert ast.unparse(blank.args) == ast.unparse(full.args)
            assert ast.get_docstring(blank) == ast.get_docstring(full) is not None
            raising = f"raise NotImplementedError('exercise {exercise_id}')"
            marked = f"# exercise {exercise_id}: blank" in "\n".join(source.read(target).lines)
            body = [ast.unparse(statement) for statement in blank.body[1:]]
            assert raising in body if marked else body == [raising]
            ours = source.find(ast.parse(target.source_path().read_text()), target.qualname)
            assert ast.dump(full) == ast.dump(ours)


def test_a_launcher_stands_whole_in_stub_and_solution() -> None:
    for launcher in [e.launcher for e in catalogue.EXERCISES if e.launcher]:
        ours = ast.dump(source.find(ast.parse(launcher.source_path().read_text()), launcher.qualname))
        step = next(catalogue.step_of(e) for e in catalogue.EXERCISES if e.launcher == launcher)
        for text in (build.stub(step), build.solution(step)):
            assert ast.dump(source.find(ast.parse(text), launcher.qualname)) == ours


def test_every_file_can_be_loaded_on_its_own() -> None:
    for name in build.files():
        running.load_file(ROOT / name)


def test_a_method_is_asked_as_a_subclass_with_that_one_method(invented: Path) -> None:
    stub = build.stub(catalogue.STEPS[9])
    assert "class PoolAllocate(invented_pool.Pool):" in stub
    assert "class PoolReleaseAll(invented_pool.Pool):" in stub
    (invented / "stub.py").write_text(stub)
    (invented / "solution.py").write_text(build.solution(catalogue.STEPS[9]))
    blank, full = running.load_file(invented / "stub.py"), running.load_file(invented / "solution.py")
    with pytest.raises(NotImplementedError, match=r"exercise 9\.1"):
        blank.PoolAllocate(4).allocate(2)
    assert full.PoolAllocate(4).allocate(2) == [3, 2]
    blank.PoolAllocate(4).release_all([1])  # not the exercise's method: inherited


def test_a_marked_part_is_blanked_and_the_rest_stays(invented: Path) -> None:
    code = source.read(Target.parse("invented_pool:partly"))
    blank = source.blank(code, "9.3")
    assert blank[2:] == ["    y = math.sqrt(x)", '    raise NotImplementedError("exercise 9.3")', "    return y"]
    assert "exercise 9.3" not in "\n".join(source.without_marks(code))
    assert source.answer_lines(code, "9.3") == 2
    assert source.answer_lines(source.read(Target.parse("invented_pool:Pool.allocate")), "9.1") == 1  # no comments


def test_imports_are_those_that_are_needed(invented: Path) -> None:
    lines = build.import_lines(catalogue.EXERCISES[0])
    assert lines == ["import invented_pool", "from invented_pool import LIMIT, helper"]
    assert build.import_lines(catalogue.EXERCISES[2]) == ["import math"]


def test_the_catalogue_is_complete() -> None:
    ids = [e.id for e in catalogue.EXERCISES]
    assert ids == sorted(set(ids), key=lambda i: tuple(map(int, i.split("."))))
    for e in catalogue.EXERCISES:
        assert len(e.hints) == 3
        assert all(e.hints)
        assert e.hints[0].rstrip().endswith("?"), f"{e.id}: the first hint is a question"
        assert e.hints[2].count("____") in (1, 2), f"{e.id}: the third hint leaves one expression blank"
        assert 1 <= e.difficulty <= 3
        assert 5 <= e.minutes <= 25
        assert all(t.resolve() for t in (*e.functions, *e.given))
        assert not (e.core and e.warm_up)
        lines = sum(source.answer_lines(source.read(t), e.id) for t in e.targets)
        assert (1 if not e.core else 3) <= lines <= 20
    for number in catalogue.STEPS:
        parts = [e.part for e in catalogue.of_step(number)]
        assert parts.count("core") <= 6
        assert parts == sorted(parts, key=["warm-up", "core", "further"].index)


def test_every_exercise_names_a_section_that_its_lesson_has() -> None:
    for e in catalogue.EXERCISES:
        lesson = ROOT / "notebooks" / catalogue.step_of(e).notebook
        cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
        headings = {line.strip() for cell in cells if cell["cell_type"] == "markdown"
                    for line in "".join(cell["source"]).splitlines() if line.startswith("#")}
        assert any(h.lstrip("# ") == e.section for h in headings), f"{e.id}: {lesson.name} has no {e.section!r}"


def test_catalogued_functions_are_called_through_their_module() -> None:
    """A name imported from its module would stay ours when the module's is exchanged; as an annotation it may."""
    targets = {(t.module, (t.owner or t.function)) for e in catalogue.EXERCISES for t in e.functions}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        used = used_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names = {(node.module, a.name) for a in node.names if (a.asname or a.name) in used}
                taken = names & targets
                assert not taken, f"{path.relative_to(ROOT)} uses {taken} by name: expected module.function"


def used_names(tree: ast.Module) -> set[str]:
    """The names that a module uses other than in its annotations, which never run."""
    annotations = [getattr(node, field, None) for node in ast.walk(tree) for field in ("annotation", "returns")]
    written = {id(node) for part in annotations if part is not None for node in ast.walk(part)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in written}


def test_the_last_hint_of_a_step_of_the_scheduler_leaves_most_lines_to_write() -> None:
    (e,) = [e for e in catalogue.EXERCISES if e.id == "3.4"]
    answer = [line.strip() for t in e.targets for line in source.without_marks(source.read(t))]
    hinted = [line.strip() for line in e.hints[2].splitlines() if line.strip() in answer]
    assert len(hinted) <= sum(source.answer_lines(source.read(t), e.id) for t in e.targets) / 2


def test_hints_do_not_name_what_does_not_exist() -> None:
    """The code of every third hint, its blank filled with a name, is Python."""
    for e in catalogue.EXERCISES:
        text = re.sub(r"____", "blank", e.hints[2])
        ast.parse("def f():\n" + "\n".join(f"    {line}" for line in text.splitlines()))
