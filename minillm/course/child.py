"""The process in which the reader's code runs: python -m minillm.course.child JOB, started by `checking`.

JOB is a JSON file: root, exercises, results, trace, seconds, ids. One JSON line a happening goes to `results`: a line
when an exercise starts, a line when it is done. An exercise that never ends is ended by faulthandler, which leaves the
place in `trace`; one that takes the process down leaves a start without an end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minillm.course import catalogue, running


def main(job_path: str) -> None:
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    exercises = [catalogue.find(exercise_id) for exercise_id in job["ids"]]
    root = Path(job["root"])
    checks = {e.id: running.load_check(root, e) for e in exercises}
    for exercise in exercises:  # what takes long to import is imported before the clock starts
        for target in exercise.functions if running.missing(exercise) is None else ():
            target.import_module()
    with open(job["results"], "a", encoding="utf-8") as results, open(job["trace"], "a", encoding="utf-8") as trace:
        for exercise in exercises:
            _tell(results, {"start": exercise.id, "printed": _printed()})
            faulthandler.dump_traceback_later(job["seconds"], exit=True, file=trace)
            path = Path(job["exercises"]) / catalogue.step_of(exercise).filename
            result = running.run(exercise, checks[exercise.id], path)
            faulthandler.cancel_dump_traceback_later()
            _tell(results, {"result": asdict(result), "printed": _printed()})
    os._exit(0)  # whatever threads the reader's code started end here


def _tell(results: Any, event: dict) -> None:
    results.write(json.dumps(event) + "\n")
    results.flush()


def _printed() -> int:
    """Bytes printed so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fstat(1).st_size


if __name__ == "__main__":
    main(sys.argv[1])
