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
    """The commit the code was at, with '+' when the tree differed from it."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True,
                              check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def write(name: str, device: str, results: dict[str, Any], versions: dict[str, str]) -> Path:
    """Store a run as results/NAME_DEVICE.json and return the path. A later run on the same device replaces it."""
    RESULTS.mkdir(exist_ok=True)
    slug = "".join(c if c.isalnum() else "-" for c in device.lower()).strip("-")
    while "--" in slug:
        slug = slug.replace("--", "-")
    path = RESULTS / f"{name}_{slug}.json"
    run = {
        "benchmark": name,
        "device": device,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "command": " ".join([f"python {Path(sys.argv[0]).parent.name}/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **versions},
        "results": results,
    }
    path.write_text(json.dumps(run, indent=2) + "\n")
    return path
