"""What `bench` and `simulate` print: latencies, rates, what was refused; as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from minillm.cli.lines import count_of, duration, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from minillm.measure.metrics import SLO, RequestTimes, Summary
    from minillm.measure.workload import WorkItem

LISTED = 10  # refusals shown; --json has them all


def described(items: Sequence[WorkItem]) -> str:
    """`16 requests over 7.3 s` or `16 requests, all at once`; follow-ups come when their conversation gets there."""
    first = [item.arrival for item in items if item.follows is None]
    when = f" over {duration(max(first))}" if max(first) else ", all at once"
    later = f", and {len(items) - len(first):,} that follow one" if len(first) < len(items) else ""
    return f"{count_of(len(first), 'request')}{when}{later}"


def latencies(label: str, summary: Summary) -> Table:
    """`label` stands over the rows: 'measured' or 'simulated'."""
    made = table(label, "p50", "p95", "p99", "mean")
    for name, found in (("TTFT: to the first token", summary.ttft), ("TPOT: per token after it", summary.tpot),
                        ("ITL: between two tokens", summary.itl), ("end to end", summary.e2e)):
        if found is not None:
            made.add_row(name, *map(duration, (found.p50, found.p95, found.p99, found.mean)))
    return made


def rates(summary: Summary, times: Sequence[RequestTimes], slo: SLO | None) -> list[tuple[str, str]]:
    """Rows for `totals`: what was served, and how fast."""
    prompts = sum(one.prompt_tokens for one in times)
    rows = [("requests, prompt tokens, output tokens", f"{summary.requests:,}, {prompts:,}, {summary.output_tokens:,}"),
            ("seconds", f"{summary.seconds:,.1f}"), ("requests/s", f"{summary.requests_per_second:,.2f}"),
            ("output tokens/s", f"{summary.output_tokens_per_second:,.1f}")]
    if slo is not None:
        asked = [f"{name} ≤ {duration(limit)}" for name, limit in (("TTFT", slo.ttft), ("TPOT", slo.tpot)) if limit]
        met = f"{sum(map(slo.met, times)):,} of {len(times):,}"
        rows.append((f"goodput: {' and '.join(asked)}", f"{summary.goodput:,.2f} requests/s ({met})"))
    return rows


def totals(label: str, rows: Sequence[tuple[str, str]]) -> Table:
    made = table(label, "")
    for row in rows:
        made.add_row(*row)
    return made


def show_refused(out: Console, refused: Mapping[int, str]) -> None:
    """Each item that could never run, and why."""
    if not refused:
        return
    out.print(f"[bold]Refused:[/] {len(refused):,} that could never run")
    for place in sorted(refused)[:LISTED]:
        out.print(f"  item {place}: {refused[place]}", markup=False)
    if len(refused) > LISTED:
        out.print(f"  and {len(refused) - LISTED:,} more, see --json")


def plain(summary: Summary | None, times: Sequence[RequestTimes], slo: SLO | None,
          refused: Mapping[int, str]) -> dict[str, Any]:
    """For --json; times in seconds. Without a summary, nothing was served."""
    found: dict[str, Any] = {"requests": len(times), "prompt_tokens": sum(one.prompt_tokens for one in times)}
    if summary is not None:
        values = asdict(summary)
        found |= {"output_tokens": summary.output_tokens, "seconds": summary.seconds}
        found |= {f"{name}_s": values[name] for name in ("ttft", "tpot", "itl", "e2e")}
        found |= {name: values[name] for name in ("requests_per_second", "output_tokens_per_second", "goodput")}
    if slo is not None:
        found |= {"slo": asdict(slo), "requests_within_slo": sum(map(slo.met, times))}
    return {**found, "refused": {str(place): refused[place] for place in sorted(refused)}}
