"""Check exercises in a process of their own, and turn whatever becomes of it into a result.

The reader's code may loop for ever, print without end, eat memory or end Python. The process is watched for that; one
process checks as many exercises as it survives, so that checking all of them starts Python once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minillm.course import catalogue
from minillm.course.exercise import Exercise
from minillm.course.running import FAILED, Result
from minillm.course.workspace import Workspace

SECONDS = 10.0  # for one exercise, not counting the start of Python and what the package imports
START_SECONDS = 120.0
OUTPUT_BYTES = 1_000_000
MEMORY_BYTES = 3 * 2**30
SHOWN_LINES = 12


class CheckError(RuntimeError):
    """The check itself could not be run: a defect of ours, not of the reader's code."""


@dataclass(frozen=True)
class Checked:
    """A result, and what the reader's code printed while it was found (its first lines)."""

    exercise: Exercise
    result: Result
    printed: tuple[str, ...] = ()


def check(workspace: Workspace, exercises: Sequence[Exercise], seconds: float = SECONDS) -> list[Checked]:
    """Check exercises, in order. Raises CheckError if checking itself fails, never for the reader's code."""
    left, done = list(exercises), []
    while left:
        results = _one_process(workspace, left, seconds)
        done += results
        left = left[len(results) :]
    return done


def _one_process(workspace: Workspace, exercises: Sequence[Exercise], seconds: float) -> list[Checked]:
    """Check as many exercises as one process survives; the one that it does not survive is the last of the list."""
    with tempfile.TemporaryDirectory(prefix="minillm-check-") as folder:
        place = Path(folder)
        job = {"root": str(workspace.root), "exercises": str(workspace.exercises), "seconds": seconds,
               "results": str(place / "results"), "trace": str(place / "trace"), "ids": [e.id for e in exercises]}
        (place / "job").write_text(json.dumps(job), encoding="utf-8")
        for name in ("results", "trace", "printed"):
            (place / name).touch()
        (place / "cwd").mkdir()
        with (place / "printed").open("wb") as printed:
            process = subprocess.Popen([sys.executable, "-m", "minillm.course.child", str(place / "job")],
                                       stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, cwd=place / "cwd",
                                       env=_environment(), start_new_session=True)
            try:
                ended = _watch(process, place, seconds)
            finally:
                _end(process)
        return _collect(exercises, place, ended or _exit_facts(process.returncode), seconds)


def _environment() -> dict[str, str]:
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    # interpreted even where there is a GPU: only so can be seen what a kernel loads and stores, and nothing be spoilt
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}


Facts = tuple[str, tuple[tuple[str, str], ...]]


def _watch(process: subprocess.Popen, place: Path, seconds: float) -> Facts | None:
    """Wait for the end. Returns (diagnosis, facts) if it had to be ended for what it did, None if it ended itself."""
    deadline = time.monotonic() + START_SECONDS
    seen = 0
    while process.poll() is None:
        events = _events(place)
        if len(events) > seen:  # each start and each result moves the deadline; faulthandler is the one that keeps time
            seen, deadline = len(events), time.monotonic() + seconds + START_SECONDS
        before = events[-1]["printed"] if events else 0
        if (place / "printed").stat().st_size - before > OUTPUT_BYTES:
            return "output", (("problem", f"it printed more than {OUTPUT_BYTES // 10**6} MB, and was stopped"),
                              ("idea", "Is a print left inside a loop?"))
        if _memory(process.pid) > MEMORY_BYTES:
            return "memory", (("problem", f"it took more than {MEMORY_BYTES // 2**30} GiB of memory, and was stopped"),
                              ("idea", "The inputs of a check are tiny: does something grow without end?"))
        if time.monotonic() > deadline:
            return "timeout", (("problem", "it did not end, and could not be interrupted"),)
        time.sleep(0.01)
    return None


def _events(place: Path) -> list[dict]:
    lines = (place / "results").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]  # the last piece is empty, or still being written


def _memory(pid: int) -> int:
    """Resident bytes of a process; 0 where /proc does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _end(process: subprocess.Popen) -> None:
    """End the process and whatever it started."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    if process.poll() is None:
        process.kill()
    process.wait()


def _exit_facts(code: int) -> Facts:
    if code < 0:
        name = signal.Signals(-code).name
        return "killed", (("problem", f"Python was ended by {name} while your code ran"),)
    return "exit", (("problem", f"your code ended Python itself, with exit code {code}"),
                    ("idea", "Return a value instead."))


def _collect(exercises: Sequence[Exercise], place: Path, ended: Facts, seconds: float) -> list[Checked]:
    """The results that were told, and one for the exercise during which the process ended."""
    output = (place / "printed").read_bytes()
    done, start, running = [], 0, None
    for event in _events(place):
        if "start" in event:
            running, start = event["start"], event["printed"]
            continue
        told = event["result"]
        result = Result(told["exercise"], told["status"], told["diagnosis"], tuple(map(tuple, told["facts"])),
                        tuple(told["picture"]))
        done.append(Checked(exercises[len(done)], result, _lines(output[start : event["printed"]])))
        running = None
    if running is not None:
        exercise = exercises[len(done)]
        trace = (place / "trace").read_text(encoding="utf-8", errors="replace")
        diagnosis, facts = _timeout_facts(exercise, trace, seconds) if "Timeout" in trace else ended
        done.append(Checked(exercise, Result(exercise.id, FAILED, diagnosis, facts), _lines(output[start:])))
    if not done:
        last = output.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise CheckError(f"the check of {exercises[0].id} could not start: {last[0]}")
    return done


def _timeout_facts(exercise: Exercise, trace: str, seconds: float) -> Facts:
    """Where faulthandler found the reader's code when its time was over."""
    name = catalogue.step_of(exercise).filename
    place = re.search(rf'File "([^"]*{re.escape(name)})", line (\d+)', trace)
    facts = [("problem", f"still running after {seconds:g} seconds, and was stopped")]
    if place:
        number = int(place.group(2))
        line = Path(place.group(1)).read_text(encoding="utf-8").splitlines()[number - 1].strip()
        facts.append(("at", f"{name}, line {number}: {line}"))
    return "timeout", (*facts, ("idea", "Does the loop's condition ever become false?"))


def _lines(printed: bytes) -> tuple[str, ...]:
    """The first lines printed, each cut to a terminal's width."""
    lines = printed[:100_000].decode("utf-8", "replace").splitlines()
    shown = [line if len(line) <= 110 else line[:109] + "…" for line in lines[:SHOWN_LINES]]
    more = len(lines) - SHOWN_LINES
    return (*shown, f"… ({more} line{'s' if more > 1 else ''} more)") if more > 0 else tuple(shown)
