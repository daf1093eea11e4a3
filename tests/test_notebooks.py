"""The committed lessons: built from their sources, run in order, clean, small, and shaped as every lesson is."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from minillm.course import notebooks

SOURCES = notebooks.sources()
IDS = [source.stem for source in SOURCES]


@pytest.fixture(params=SOURCES, ids=IDS)
def lesson(request):
    """(source path, committed notebook) of each lesson."""
    target = notebooks.built(request.param)
    assert target.exists(), f"{target.name} is missing: run make notebooks"
    return request.param, nbformat.read(target, 4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_clock(cell) -> bool:
    return "nbval-ignore-output" in cell.metadata.get("tags", ())


def test_there_is_no_notebook_without_a_source() -> None:
    assert sorted(p.stem for p in notebooks.NOTEBOOKS.glob("*.ipynb")) == IDS


def test_the_built_file_has_the_inputs_of_its_source(lesson) -> None:
    source, notebook = lesson
    assert notebooks.inputs(notebook) == notebooks.inputs(notebooks.convert(source)), "run make notebooks"


def test_every_cell_ran_in_order_without_error_or_machine_path(lesson) -> None:
    source, notebook = lesson
    assert notebooks.problems(notebook, source.stem) == []
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
    assert notebook.metadata == notebooks.METADATA


def test_the_file_is_under_a_megabyte(lesson) -> None:
    assert notebooks.built(lesson[0]).stat().st_size < 1_000_000


def test_cells_are_short_and_prose_is_about_half(lesson) -> None:
    _, notebook = lesson
    for cell in code_cells(notebook):
        assert len(cell.source.splitlines()) < 25, cell.source
    prose = sum(cell.cell_type == "markdown" for cell in notebook.cells)
    assert 0.35 <= prose / len(notebook.cells) <= 0.65


def test_there_are_four_figures_or_more(lesson) -> None:
    figures = [out for cell in code_cells(lesson[1]) for out in cell.outputs if "image/png" in out.get("data", {})]
    assert len(figures) >= 4


def test_a_clock_cell_asserts_something_and_a_result_cell_reads_no_clock(lesson) -> None:
    for cell in code_cells(lesson[1]):
        calls = {node.attr for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Attribute)}
        if is_clock(cell):
            assert any(isinstance(node, ast.Assert) for node in ast.parse(cell.source).body), cell.source
        else:
            assert not calls & {"time_call", "alternate", "measure_machine", "perf_counter"}, cell.source
            assert not any("image/png" in out.get("data", {}) for out in cell.outputs) or "plots" in cell.source


def test_a_broken_lesson_is_refused_and_leaves_the_built_file_alone(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "source").mkdir()
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    source = tmp_path / "source" / "09_broken.py"
    source.write_text('# %%\nprint("fine")\n')
    assert notebooks.build(source) is True
    assert notebooks.build(source) is False
    before = (tmp_path / "09_broken.ipynb").read_bytes()
    for body, words in [("1 / 0", "ZeroDivisionError"), ('import sys; sys.stderr.write("oh")', "stderr"),
                        ("import minillm; print(minillm.__file__)", "path of a machine"),
                        ("object()", "address of an object")]:
        source.write_text(f"# %%\n{body}\n")
        with pytest.raises(notebooks.NotebookError, match=words):
            notebooks.build(source)
        assert (tmp_path / "09_broken.ipynb").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["09_broken.ipynb", "source"]
