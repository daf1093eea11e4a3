"""Write one benchmark run as JSON under benchmarks/results/: what was measured, on what, with what, when."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def commit() -> str:
    """The commit the code was at, with '+' when the tree differed from it, records aside; 'unknown' without git."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True,
                              check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude){RESULTS.name}")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def path(name: str, device: str) -> Path:
    """results/NAME_DEVICE.json"""
    slug = "".join(c if c.isalnum() else "-" for c in device.lower()).strip("-")
    while "--" in slug:
        slug = slug.replace("--", "-")
    return RESULTS / f"{name}_{slug}.json"


def write(name: str, device: str, results: dict[str, Any], versions: dict[str, str]) -> Path:
    """Store a run as results/NAME_DEVICE.json and return the path. A later run on the same device replaces it."""
    RESULTS.mkdir(exist_ok=True)
    run = {
        "benchmark": name,
        "device": device,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "command": " ".join([f"python {Path(sys.argv[0]).parent.name}/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **versions},
        "results": results,
    }
    target = path(name, device)
    part = target.with_suffix(".part")  # a run that is cut off while writing leaves the earlier record whole
    part.write_text(json.dumps(run, indent=2) + "\n")
    return part.replace(target)
