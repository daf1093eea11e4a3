"""The model that `generate` and `chat` talk to: the package's own, or one with the reader's functions in it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.cli.lines import note
from minillm.cli.models import check_device, check_model, ensure

if TYPE_CHECKING:
    from minillm.course.exchange import Report
    from minillm.course.workspace import Workspace
    from minillm.llm import LLM

Using = Annotated[str | None, typer.Option(help="'exercises': your functions, where they pass, in place of ours.")]
PROBE = "Count from one to ten."
PROBE_TOKENS = 16


def load(model: str, dtype: str, device: str | None, attention: str, kv_cache_dtype: str, **options: Any) -> LLM:
    """The model, fetched in sight if need be. options: others of `LLM`.

    Raises ValueError for a name, dtype, device, backend or KV dtype that is none.
    """
    check(model, device, attention, kv_cache_dtype)
    ensure(model)
    from minillm.llm import LLM

    return LLM(model, dtype=dtype, device=device, attention=attention, kv_cache_dtype=kv_cache_dtype, **options)


def check(model: str, device: str | None, attention: str, kv_cache_dtype: str) -> None:
    """Raises ValueError for a model, device, backend or KV dtype that can be none here; nothing is fetched yet."""
    from minillm.attention import backends, triton_backend
    from minillm.cache import build
    from minillm.measure.hardware import best_device

    check_model(model)
    backends.check_backend(attention)
    build.check(16, kv_cache_dtype, "hash")
    check_device(device)
    if attention == "triton":
        triton_backend.check(device or best_device())


def check_using(using: str | None) -> None:
    """Raises ValueError for anything but None or 'exercises'."""
    if using not in (None, "exercises"):
        raise ValueError(f"--using is '{using}': expected 'exercises'")


@contextmanager
def exchanged(using: str | None) -> Iterator[Report | None]:
    """With using='exercises', the reader's functions run in place of the package's inside the block; said on stderr.

    An error out of the reader's file becomes a ValueError that names the line. Raises ValueError for another `using`.
    """
    check_using(using)
    if using is None:
        yield None
        return
    from minillm.course import exchange, workspace

    place = workspace.find()
    note("minillm: checking your exercises")
    report = exchange.exchange(place=place)
    for line in report.lines():
        note(line)
    try:
        yield report
    except Exception as error:
        where = reader_line(error, place)
        if where is None:
            raise
        raise ValueError(f"{where} raised {type(error).__name__}: {error}") from error
    finally:
        report.undo()


@contextmanager
def loaded(model: str, dtype: str, device: str | None, attention: str, using: str | None,
           kv_cache_dtype: str = "auto", **options: Any) -> Iterator[LLM]:
    """`load` inside `exchanged`; then both engines' tokens per second, on one short prompt, are said and kept.

    Not where kernels are interpreted, which takes minutes and says nothing of how fast they are.
    """
    check_using(using)
    check(model, device, attention, kv_cache_dtype)
    timed = using is not None and not interpreted(attention)
    ours = speed(load(model, dtype, device, attention, kv_cache_dtype, **options)) if timed else None
    with exchanged(using) as report:
        llm = load(model, dtype, device, (report and report.attention) or attention, kv_cache_dtype, **options)
        if report and report.used and not timed:
            note("speeds are not measured: --attention triton is interpreted here, a few tokens take minutes")
        elif report and report.used:
            yours = speed(llm)
            note(f"yours {yours:.1f} tokens/s, ours {ours:.1f} tokens/s")
            remember(report, yours, ours)
        yield llm


def interpreted(attention: str) -> bool:
    """Whether this backend's kernels run under Triton's interpreter."""
    if attention != "triton":
        return False
    import triton

    return triton.knobs.runtime.interpret


def speed(llm: LLM) -> float:
    """Decode tokens per second on one short prompt, the second of two runs."""
    from minillm.decoding.sampling import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=PROBE_TOKENS, ignore_eos=True)
    llm.generate(PROBE, params)
    return 1 / llm.generate(PROBE, params)[0].times.tpot


def remember(report: Report, yours: float, ours: float) -> None:
    """Keep both speeds for `minillm progress`, under the last step that the reader's functions reach."""
    from minillm.course import progress, workspace

    place = workspace.find()
    kept = progress.load(place)
    kept.speeds[f"step {max(e.step_number for e in report.used)}"] = (yours, ours)
    progress.save(place, kept)


def reader_line(error: Exception, place: Workspace) -> str | None:
    """Where in the reader's files an error came up; None if in none of them."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).parent == place.exercises]
    return f"{place.shown(Path(inside[-1].filename))}, line {inside[-1].lineno}" if inside else None
