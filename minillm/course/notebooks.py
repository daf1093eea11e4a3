"""Build the lessons: notebooks/NN_name.ipynb, executed, from notebooks/source/NN_name.py.

    python -m minillm.course.notebooks            build and execute what changed
    python -m minillm.course.notebooks --force    all of them again
    python -m minillm.course.notebooks 01         only those whose name starts so

The source (jupytext's py:percent format, tags inline) is what is written and reviewed. The built file carries stable
cell ids and nothing of the run but its outputs, so that a rebuild changes only what the lesson changed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT = 180  # seconds, also what nbval is given
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class NotebookError(ValueError):
    """A lesson that cannot be built as it stands."""


def sources(prefix: str = "") -> list[Path]:
    """The lesson sources whose names start with `prefix`, in order."""
    return sorted(path for path in (NOTEBOOKS / "source").glob("*.py") if path.name.startswith(prefix))


def built(source: Path) -> Path:
    """Where a source's notebook lies."""
    return NOTEBOOKS / f"{source.stem}.ipynb"


def convert(source: Path):
    """The notebook of a source, not yet executed: cells with stable ids and tags, no other metadata."""
    import jupytext
    from nbformat import NotebookNode

    notebook = jupytext.read(source, fmt="py:percent")
    notebook.metadata = NotebookNode(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        cell.id = f"{digest}-{seen[digest]}"
        tags = cell.metadata.get("tags")
        cell.metadata = NotebookNode({"tags": sorted(tags)} if tags else {})
    return notebook


def inputs(notebook) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """What a notebook was built from: (id, kind, source, tags) of each cell."""
    return [(cell.id, cell.cell_type, cell.source, tuple(cell.metadata.get("tags", ()))) for cell in notebook.cells]


def problems(notebook, name: str) -> list[str]:
    """What is wrong with an executed notebook, one line each: cells not run in order, errors, stderr, machine paths."""
    found = []
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"{name}: execution counts are {counts}: expected every code cell run once, in order")
    places = {str(Path.home()), str(ROOT), sys.prefix}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            where = f"{name}, cell {cell.id}"
            if output.output_type == "error":
                found.append(f"{where}: raised {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"{where}: wrote to stderr: {output.text.strip().splitlines()[-1]}")
            text = output.get("text", "") + output.get("data", {}).get("text/plain", "")
            text += output.get("data", {}).get("text/html", "")
            if re.search(r" at 0x[0-9a-f]{6,}", text):
                found.append(f"{where}: its output holds the address of an object, another one each time")
            found += [f"{where}: its output holds the path of a machine: {place}" for place in places if place in text]
    return found


def build(source: Path, force: bool = False) -> bool:
    """Build and execute one lesson; False when the built file already has these inputs.

    Raises NotebookError for a lesson that fails, and leaves the built file as it was.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook, target = convert(source), built(source)
    if target.exists() and not force and inputs(nbformat.read(target, 4)) == inputs(notebook):
        return False
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT, kernel_name="python3", record_timing=False,
                            resources={"metadata": {"path": str(NOTEBOOKS)}})
    try:
        client.execute()
    except CellExecutionError as error:
        raise NotebookError(f"{source.name} did not run to its end:\n{error}") from None
    wrong = problems(notebook, target.name)
    if wrong:
        raise NotebookError("\n".join(wrong))
    notebook.metadata = type(notebook.metadata)(METADATA)  # the kernel adds its version
    part = target.with_suffix(".part")
    nbformat.write(notebook, part)
    part.replace(target)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m minillm.course.notebooks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", nargs="?", default="", help="build only lessons whose name starts so, e.g. 01")
    parser.add_argument("--force", action="store_true", help="build even what has not changed")
    arguments = parser.parse_args()
    chosen = sources(arguments.prefix)
    if not chosen:
        parser.exit(2, f"no lesson starts with {arguments.prefix!r}: expected one of "
                       f"{', '.join(path.stem for path in sources())}\n")
    for source in chosen:
        try:
            done = build(source, arguments.force)
        except NotebookError as error:
            parser.exit(1, f"{error}\n")
        print(f"{source.stem}: {'built and executed' if done else 'unchanged'}", flush=True)


if __name__ == "__main__":
    main()
