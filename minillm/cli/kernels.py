"""`minillm kernels`: every Triton kernel compiled for GPUs that need not be here, and what each takes of an SM."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from minillm.cli.lines import console, count_of, note, print_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from minillm.kernels.aot import Report

LEGEND = """regs: registers of a thread, 32-bit. shared: memory of a block. resident: warps that an SM (gfx942: a \
compute unit) holds at once, of the most that it can. limited by: what lets no more in. uses: the tensor-core \
instruction."""
# what chips are sold as, where one would type that instead
TARGETS = {"a100": "sm_80", "4090": "sm_89", "rtx4090": "sm_89", "l4": "sm_89", "l40s": "sm_89", "h100": "sm_90",
           "h200": "sm_90", "b200": "sm_100", "mi300x": "gfx942"}
WIDTHS = (26, 4, 6, 6, 8, 11, 7)  # of the columns; with two between, 80 in all


def register(app: typer.Typer) -> None:
    app.command()(kernels)


def kernels(
    chip: Annotated[list[str] | None, typer.Option(
        help="sm_80, sm_89, sm_90, sm_100 or gfx942; repeat it for several. Default: all five.")] = None,
    kernel: Annotated[list[str] | None, typer.Option(
        help="A module of kernels/, such as rms_norm; repeat it for several. Default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compile the Triton kernels for five GPUs, without having one.

    For each: registers of a thread, spills to memory, shared memory of a block, warps resident on an SM and what
    limits them, and the tensor-core instruction used. A second or two for each kernel and chip the first time;
    Triton keeps the results. Exit code 1 when a kernel does not compile, spills, exceeds a chip's limits or misses
    its instruction.

    \b
    Examples:
      minillm kernels
      minillm kernels --chip sm_90 --kernel rms_norm
    """
    from minillm.kernels.aot import CompileError, compile_all

    chips, modules = list(dict.fromkeys(chip or [])), list(dict.fromkeys(kernel or []))
    _check(chips, modules)
    what, targets = ", ".join(modules) or "every kernel", ", ".join(chips) or "five chips"
    note(f"minillm: compiling {what} for {targets} (what is kept from before, read)")
    try:
        reports = compile_all(chips or None, modules or None)
    except CompileError as error:
        note(f"minillm: {error}")
        raise typer.Exit(1) from error
    if as_json:
        print_json([{**asdict(r), "occupancy": asdict(r.occupancy()), "problems": r.problems()} for r in reports])
    else:
        _show(reports)
    raise typer.Exit(1 if any(r.problems() for r in reports) else 0)


def _check(chips: list[str], modules: list[str]) -> None:
    """Raises ValueError for a name that is none, with the one meant where that is known, or where Triton is missing."""
    from minillm.kernels import aot

    for name in chips:
        meant = TARGETS.get(name.lower().replace("-", "").replace(" ", ""))
        if meant:
            raise ValueError(f"--chip is '{name}': expected '{meant}', what that compiles for")
    aot.check(chips, modules)


def _show(reports: list[Report]) -> None:
    """A table for each kernel, a row for each chip, then what is wrong."""
    from minillm.kernels.chips import CHIPS

    out = console()
    for name in dict.fromkeys(r.name for r in reports):
        out.print(_rows(name, [r for r in reports if r.name == name]), "")
    out.print(LEGEND)
    shown = {r.chip for r in reports}
    out.print("; ".join(f"{name}: {chip.sold_as}" for name, chip in CHIPS.items() if name in shown) + ".")
    troubles = [f"{r.name} on {r.chip} {problem}" for r in reports for problem in r.problems()]
    for trouble in troubles:
        out.print(f"[bold red]{trouble}[/]")
    if not troubles:
        out.print("Every kernel compiles, spills nothing, fits its chip, and uses the tensor core where it should.")


def _rows(name: str, reports: list[Report]) -> Table:
    """One kernel's chips. Columns are as wide in every table, so that they stand below each other in 80 columns."""
    shown = table(textwrap.fill(name, WIDTHS[0]), "regs", "spills", "shared", "resident", "limited by", "uses")
    shown.show_edge, shown.padding = False, (0, 0, 0, 1)
    for column, width in zip(shown.columns, WIDTHS):
        column.min_width = width
    for r in reports:
        fit = r.occupancy()
        launch = f"{r.chip}: {count_of(r.num_warps, 'warp')}, {count_of(r.num_stages, 'stage')}"
        # of several kinds of spill the largest figure; what each is stands below the tables
        shown.add_row(launch, str(r.registers), str(max(r.spills.values())), _kib(r.shared_bytes),
                      f"{fit.warps}/{fit.max_warps}", _limit(fit.limit), "+".join(r.instructions) or "-")
    return shown


def _limit(named: str) -> str:
    """In the columns' words, two at most. Where warps are a limit the SM is full, whatever else is used up by then."""
    limits = named.replace("registers", "regs").replace(" memory", "").split(" + ")
    return "warps" if "warps" in limits else "+".join(limits[:2])


def _kib(count: int) -> str:
    return f"{count} B" if count < 1024 else f"{count / 1024:.3g} K"
