"""`minillm doctor`: what this machine can run, what will be skipped, and what to type where it falls short.

It asks nothing of the network. Exit 1 when something that every lesson needs is missing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from minillm.cli.lines import console, count_of, print_json, size, table

OK, MISSING, SKIPPED = "ok", "missing", "skipped"
SMOLLM2_PEAK = 1.2e9  # bytes: 538 MB of float32 weights, 113 MB of a packed head, and what importing torch takes
SMOLLM2_DISK = 0.2e9  # bytes: the download and the file that it is unpacked to


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` is needed by every lesson; `skipped` names what runs without."""

    name: str
    status: str
    found: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False) -> None:
    """Say what this machine can run, and what will be skipped.

    Exit code 1 when something needed is missing; the line beside it is the command that mends it.

    \b
    Example:
      minillm doctor
    """
    findings = examine()
    missing = [f for f in findings if f.status == MISSING]
    if as_json:
        print_json({"ok": not missing, "findings": [asdict(f) for f in findings]})
    else:
        _show(findings, missing)
    raise typer.Exit(1 if missing else 0)


def examine() -> list[Finding]:
    """Every finding, in the order of the report. Imports torch, touches no network and writes nothing."""
    findings = [_python(), _packages(), _torch()]
    if all(f.status == OK for f in findings):  # what follows imports them
        findings += [_packing(), _gpu(), _triton(), _disk(), _model()]
    return [*findings, _memory(), _course()]


def _show(findings: list[Finding], missing: list[Finding]) -> None:
    report = table("", "", "")
    for column in report.columns:
        column.justify, column.no_wrap = "left", False
    report.columns[0].no_wrap = report.columns[1].no_wrap = True
    report.show_header = False
    styles = {OK: "green", MISSING: "bold red", SKIPPED: "yellow"}
    for f in findings:
        report.add_row(f.name, f"[{styles[f.status]}]{f.status}[/]", f.found)
    out = console()
    out.print(report)
    for f in findings:
        if f.fix:
            out.print(f"{f.name}: [bold]{f.fix}[/]")
    skipped = sum(f.status == SKIPPED for f in findings)
    told = f"{len(missing)} needed and missing" if missing else "All that the lessons need is here"
    out.print(f"\n{told}; {skipped} skipped." if skipped else f"\n{told}.")


def _python() -> Finding:
    # pip installs minillm into nothing older than it can run on
    return Finding("Python", OK, f"{platform.python_version()} ({sys.executable})")


def _packages() -> Finding:
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        needed = [r for r in requires("minillm") or [] if "extra ==" not in r]
    except PackageNotFoundError:
        return Finding("packages", MISSING, "minillm is not installed, only found", "make learn LAB=0")
    absent = []
    for requirement in needed:
        name = re.match(r"[A-Za-z0-9._-]+", requirement).group()
        if name in ("torch", "triton"):  # each has a line of its own
            continue
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        return Finding("packages", MISSING, "not installed: " + ", ".join(absent), "make learn LAB=0")
    return Finding("packages", OK, f"minillm {version('minillm')} and what it needs")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", MISSING, " ".join(str(error).split())[:200], "make learn LAB=0")
    build = next((f"{name} {v}" for name, v in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)) if v), "CPU")
    found = f"{torch.__version__}, {build} build, {count_of(torch.get_num_threads(), 'thread')}"
    if tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2]) < (2, 11):
        return Finding("torch", MISSING, f"{found}: expected 2.11 or later", "pip install 'torch>=2.11'")
    return Finding("torch", OK, found)


def _packing() -> Finding:
    from minillm.model import packing

    if packing.supported():
        return Finding("weights", OK, "packed for oneDNN where a model runs on the CPU in float32")
    return Finding("weights", SKIPPED, "not packed: torch is built without oneDNN; products of few rows are slower")


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        more = torch.cuda.device_count() - 1
        found = f"{card.name}, {size(card.total_memory)}, compute capability {card.major}.{card.minor}"
        return Finding("GPU", OK, found + (f", and {more} more" if more else ""))
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        return Finding("GPU", SKIPPED, "an NVIDIA driver is here, but this torch is a CPU build",
                       ".venv/bin/python -m pip uninstall torch, then make learn")
    return Finding("GPU", SKIPPED, "none: lessons run on the CPU; each 'on a big GPU' section shows a recorded run "
                                   "or a prediction, so labelled")


def _triton() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    try:
        found = version("triton")
    except PackageNotFoundError:
        return Finding("triton", SKIPPED, "not installed: kernels are skipped, torch attention is used",
                       "pip install 'triton>=3.6'" if sys.platform == "linux" else "")
    if torch.cuda.is_available():
        return Finding("triton", OK, f"{found}: kernels run on the GPU")
    return Finding("triton", OK, f"{found}: kernels run interpreted, and compile for GPUs that are not here")


def _memory() -> Finding:
    from minillm.measure.shape import KNOWN_SHAPES

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available_memory(total)
    fitting = [s for s in KNOWN_SHAPES.values() if 2 * s.params < 0.8 * free]
    found = f"{size(free)} free of {size(total)}"
    if free < SMOLLM2_PEAK:
        return Finding("memory", MISSING, f"{found}: expected {size(SMOLLM2_PEAK)} free", "close other programs")
    if fitting:
        found += f": holds up to {max(fitting, key=lambda s: s.params).name} at 16 bits"
    return Finding("memory", OK, found)


def _available_memory(total: int) -> int:
    """MemAvailable on Linux, where the page cache counts as free; elsewhere all of it."""
    try:
        line = next(s for s in Path("/proc/meminfo").read_text().splitlines() if s.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return total
    return int(line.split()[1]) * 1024


def _disk() -> Finding:
    from minillm.measure.hardware import home

    folder = home()
    while not folder.exists():  # the first one that does is where it would be made
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < SMOLLM2_DISK and not _fetched():
        return Finding("disk", MISSING, f"{size(free)} free at {folder}: expected {size(SMOLLM2_DISK)}",
                       "MINILLM_HOME=/a/larger/disk minillm fetch smollm2")
    return Finding("disk", OK, f"{size(free)} free at {home()}")


def _fetched() -> bool:
    from minillm.model import zoo

    path = zoo.known_path("smollm2")
    return path.is_file() and path.stat().st_size == zoo.KNOWN["smollm2"].size


def _model() -> Finding:
    from minillm.model import zoo

    path = zoo.known_path("smollm2")
    if _fetched():
        return Finding("smollm2", OK, str(path))
    found = f"damaged: {path}" if path.exists() else "not fetched"
    return Finding("smollm2", MISSING, found, "minillm fetch smollm2")


def _course() -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding("JupyterLab", OK, f"{version('jupyterlab')}: notebooks open with 'make learn'")
    except PackageNotFoundError:
        return Finding("JupyterLab", SKIPPED, "not installed: notebooks are read, not run", "make learn")
