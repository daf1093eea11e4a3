"""`minillm bench`: a workload on the real engine, and what its users would feel."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.cli import figures
from minillm.cli.engine import Using, loaded
from minillm.cli.flags import MOST_SEQUENCES, Goal, Limits, Work, at_most, changed, items_of, takes
from minillm.cli.generation import Attention, Device, Dtype, KVCacheDtype, Model
from minillm.cli.lines import bytes_of, console, count_of, duration, print_json
from minillm.cli.machine import AsJson
from minillm.cli.watch import Board, drawing

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.measure.metrics import SLO, RequestTimes
    from minillm.measure.workload import WorkItem
    from minillm.serving.engine import StepRecord
    from minillm.serving.request import Request

BATCHINGS = ("continuous", "static", "dynamic")
TIMEOUT = 0.5  # seconds that the first request of a dynamic batch waits for others


@dataclass(frozen=True)
class EngineLimits(Limits):
    """What only a real engine has."""

    swap_space: Annotated[str, typer.Option(metavar="SIZE", help="Host memory for requests that must make room, such "
                                            "as 100MB. 0: they are computed again.")] = "0"
    kv_cache_dtype: KVCacheDtype = "auto"

    def options(self) -> dict[str, Any]:
        """As `LLM` takes them, but for kv_cache_dtype. Raises ValueError for a size that is none."""
        memory = None if self.kv_cache_memory is None else bytes_of("--kv-cache-memory", self.kv_cache_memory)
        return {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": self.max_num_batched_tokens,
                "scheduling_policy": self.policy, "swap_space_bytes": bytes_of("--swap-space", self.swap_space),
                "kv_cache_memory_bytes": memory, "prefix_index": self.prefix_index}


@dataclass
class Run:
    """What came of a workload: times of those served, why others were refused, a record a step.

    efficiency: of each static or dynamic batch, the share of its row-steps that made a token somebody wanted.
    """

    times: list[RequestTimes]
    refused: dict[int, str]
    records: list[StepRecord]
    cached_tokens: int = 0
    efficiency: list[float] = field(default_factory=list)


WORK, LIMITS = Work(), EngineLimits()


def register(app: typer.Typer) -> None:
    app.command()(bench)


@takes(work=WORK, limits=LIMITS, goal=Goal())
def bench(
    work: Work,
    limits: EngineLimits,
    goal: Goal,
    model: Model = "smollm2",
    batching: Annotated[str, typer.Option(help="continuous; static: batches of --max-num-seqs, run to the longest "
                                          "answer; dynamic: those, with a --timeout.")] = "continuous",
    timeout: Annotated[float | None, typer.Option(help="Seconds that the first request of a dynamic batch waits for "
                                                  "others. Default: 0.5.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Draw slots and blocks while it runs.")] = False,
    dtype: Dtype = "auto",
    device: Device = None,
    attention: Attention = "sdpa",
    using: Using = None,
    as_json: AsJson = False,
) -> None:
    """Run a workload on the engine: TTFT, TPOT, throughput, goodput.

    Prompts are random tokens; outputs are greedy and as long as asked. Exit code 1 when a request could never run: it
    is listed, and the others go on.

    \b
    Examples:
      minillm bench
      minillm bench --rate 2 --slo-ttft 1 --slo-tpot 0.2
      minillm bench --batching static --max-num-seqs 8 --watch
    """
    wait = patience(batching, timeout, limits)
    check_watch(watch, as_json)
    slo, options, items = goal.slo(), limits.options(), items_of(work, WORK)
    if batching != "continuous":
        check_alone(items, batching)
        options = {"max_num_seqs": 1}  # the paged cache is not used: batches have one of their own
    with loaded(model, dtype, device, attention, using, limits.kv_cache_dtype, **options) as llm:
        run = run_on(llm, items, work.seed, batching, limits.max_num_seqs, wait, watch)
        told = setting(llm, batching, limits)
    if as_json:
        print_json({**told, **as_plain(run, slo)})
    else:
        show(run, items, slo, told)
    raise typer.Exit(1 if run.refused else 0)


def patience(batching: str, timeout: float | None, limits: EngineLimits) -> float | None:
    """The timeout of dynamic batches; None for others.

    Raises ValueError for a kind of batching that is none, or a flag that it has no use for.
    """
    from minillm.measure.arguments import check_seconds

    if batching not in BATCHINGS:
        raise ValueError(f"--batching is '{batching}': expected one of {', '.join(BATCHINGS)}")
    if timeout is not None and batching != "dynamic":
        raise ValueError(f"--timeout and --batching {batching}: expected --batching dynamic")
    if timeout is not None:
        check_seconds("--timeout", timeout)
    useless = [flag for flag in changed(limits, LIMITS) if flag != "--max-num-seqs"]
    if useless and batching != "continuous":
        raise ValueError(f"{useless[0]} and --batching {batching}: expected --batching continuous")
    if batching == "continuous":
        limits.check()
    at_most("--max-num-seqs", limits.max_num_seqs, MOST_SEQUENCES)
    return (TIMEOUT if timeout is None else timeout) if batching == "dynamic" else None


def check_watch(watch: bool, as_json: bool) -> None:
    """Raises ValueError where there is nothing to draw on."""
    if watch and as_json:
        raise ValueError("--watch and --json: expected one of the two")
    if watch and (not sys.stdout.isatty() or console().is_dumb_terminal):
        raise ValueError("--watch draws on a terminal and stdout is none: expected a terminal, or no --watch")


def check_alone(items: Sequence[WorkItem], batching: str) -> None:
    """Raises ValueError for conversations: a batch is made up before anybody has answered."""
    for place, item in enumerate(items):
        if item.follows is not None:
            raise ValueError(f"item {place} follows item {item.follows} with --batching {batching}: expected "
                             "--batching continuous, or no conversations")


def run_on(llm: LLM, items: Sequence[WorkItem], seed: int, batching: str, slots: int, timeout: float | None,
           watch: bool) -> Run:
    """Warm up, then serve the workload, drawn or not."""
    warm_up(llm)
    records: list[StepRecord] = []
    fixed = batching != "continuous"
    board = Board(slots, 0 if fixed else llm.cache.pool.num_blocks, fixed)
    with drawing(board, console()) if watch else nullcontext() as draw:

        def on_step(record: StepRecord) -> None:
            records.append(record)
            if draw is not None:
                draw(record)

        if fixed:
            return in_batches(llm, items, seed, slots, timeout, board, records, on_step)
        return continuous(llm, items, seed, board, records, on_step)


def warm_up(llm: LLM) -> None:
    """The first run pays for what happens once. Its tokens are none that a workload has, so it leaves no prefix."""
    from minillm.decoding.sampling import SamplingParams
    from minillm.measure.workload import SPECIAL

    llm.generate([SPECIAL - 1] * 8, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))


def continuous(llm: LLM, items: Sequence[WorkItem], seed: int, board: Board, records: list[StepRecord],
               on_step: Callable[[StepRecord], None]) -> Run:
    """The engine itself."""
    from minillm.serving import replay

    def joined(place: int, request: Request, seqs: list[int]) -> None:
        board.add(seqs[0], place, len(request.prompt_ids), request.params.max_tokens)

    llm.engine.on_step = on_step
    try:
        found = replay.replay(items, llm.engine, lambda ids, item: request_for(llm, ids, item), llm.config.vocab_size,
                              seed, joined)
    finally:
        llm.engine.on_step = None
    cached = sum(request.num_cached_tokens for request in found.requests.values())
    return Run(found.times, found.refused, records, cached)


def in_batches(llm: LLM, items: Sequence[WorkItem], seed: int, size: int, timeout: float | None, board: Board,
               records: list[StepRecord], on_step: Callable[[StepRecord], None]) -> Run:
    """Static batches, or with a timeout dynamic ones."""
    from minillm.cache.contiguous import ContiguousKVCache
    from minillm.serving import batching

    requests, refused = requests_of(llm, items, seed)
    if not requests:
        return Run([], refused, records)
    longest = max(len(r.prompt_ids) for r in requests.values()) + max(r.params.max_tokens for r in requests.values())
    cache = ContiguousKVCache(llm.model.kv_specs(), min(size, len(requests)), longest, llm.model.dtype, llm.device,
                              llm.attention)
    start = time.perf_counter()
    served = sorted(requests, key=lambda place: items[place].arrival)
    for seq, place in enumerate(served, 1):  # as `serve` numbers them
        requests[place].arrival = start + items[place].arrival
        board.add(seq, place, len(requests[place].prompt_ids), items[place].output_tokens)
    batching.serve(llm.model, cache, [requests[place] for place in served], size, timeout, on_step)
    batches = dict.fromkeys(tuple(seq for seq, _, _ in record.rows) for record in records)
    return Run([request.output().times for request in requests.values()], refused, records,
               efficiency=[batching.slot_efficiency([items[served[seq - 1]].output_tokens for seq in batch])
                           for batch in batches])


def requests_of(llm: LLM, items: Sequence[WorkItem], seed: int) -> tuple[dict[int, Request], dict[int, str]]:
    """By place: a request of each item, or why it could never run. None follows another."""
    from minillm.measure import workload

    requests, refused = {}, {}
    for place, item in enumerate(items):
        try:
            check_context(llm, item.tokens_after(0), item)
            requests[place] = request_for(llm, workload.prompt_ids(place, item, llm.config.vocab_size, seed), item)
        except ValueError as error:
            refused[place] = str(error)
    return requests, refused


def check_context(llm: LLM, prompt_tokens: int, item: WorkItem) -> None:
    """Raises ValueError for a prompt and an output that the context does not hold."""
    if prompt_tokens + item.output_tokens > llm.max_model_len:
        raise ValueError(f"request has {prompt_tokens} prompt tokens and {item.output_tokens} new ones: expected at "
                         f"most {llm.max_model_len}, the context")


def request_for(llm: LLM, prompt_ids: list[int], item: WorkItem) -> Request:
    """A request for exactly as many tokens as the item says. Raises ValueError if it could never run."""
    from minillm.decoding.sampling import SamplingParams

    check_context(llm, len(prompt_ids), item)
    params = SamplingParams(temperature=0, max_tokens=item.output_tokens, ignore_eos=True)
    return llm.request(prompt_ids, params, item.priority)


def setting(llm: LLM, batching: str, limits: EngineLimits) -> dict[str, Any]:
    """What ran on what."""
    import torch

    from minillm.measure.hardware import device_name

    told = {"batching": batching, "model": llm.loaded.name, "dtype": str(llm.model.dtype).removeprefix("torch."),
            "device": str(llm.device), "machine": device_name(llm.device), "threads": torch.get_num_threads(),
            "attention": llm.attention, "max_num_seqs": limits.max_num_seqs}
    if batching == "continuous":
        told |= {"max_num_batched_tokens": limits.max_num_batched_tokens, "kv_blocks": llm.cache.pool.num_blocks}
    return told


def step_figures(run: Run) -> dict[str, Any]:
    """What the records say of the steps; nothing if there were none."""
    if not run.records:
        return {"steps": 0}
    records, prompts = run.records, sum(one.prompt_tokens for one in run.times)
    found = {"steps": len(records), "rows_per_step": statistics.fmean(len(r.rows) for r in records),
             "tokens_per_step": statistics.fmean(r.tokens for r in records),
             "step_s": statistics.median(r.seconds for r in records)}
    if run.efficiency:
        return {**found, "slot_efficiency": run.efficiency}
    outside = 1 - sum(r.forward for r in records) / sum(r.seconds for r in records)
    return {**found, "python_share": outside, "preemptions": sum(len(r.preempted) for r in records),
            "prefix_hit_rate": run.cached_tokens / prompts if prompts else 0.0}


def as_plain(run: Run, slo: SLO | None) -> dict[str, Any]:
    from minillm.measure.metrics import summarize

    summary = summarize(run.times, slo) if run.times else None
    return {**figures.plain(summary, run.times, slo, run.refused), **step_figures(run)}


def show(run: Run, items: Sequence[WorkItem], slo: SLO | None, told: dict[str, Any]) -> None:
    from minillm.measure.metrics import summarize

    out = console()
    threads = f", {count_of(told['threads'], 'thread')}" if told["device"] == "cpu" else ""
    out.print(f"[bold]{told['model']}[/] in {told['dtype']} on [bold]{told['machine']}[/] ({told['device']}{threads}): "
              f"{figures.described(items)}")
    room = f", {count_of(told['kv_blocks'], 'KV block')}" if "kv_blocks" in told else ""
    budget = f" and {count_of(told['max_num_batched_tokens'], 'token')} a step" if room else ""
    out.print(f"{told['batching']} batching: at most {count_of(told['max_num_seqs'], 'sequence')}{budget}{room}")
    if run.times:
        summary = summarize(run.times, slo)
        out.print(figures.latencies("measured", summary))
        out.print(figures.totals("measured", [*figures.rates(summary, run.times, slo), *step_rows(run)]))
    figures.show_refused(out, run.refused)


def step_rows(run: Run) -> list[tuple[str, str]]:
    """`step_figures` in words."""
    found = step_figures(run)
    rows = [("steps", f"{found['steps']:,}"), ("a step, median", duration(found["step_s"])),
            ("rows of a step, mean", f"{found['rows_per_step']:.1f}"),
            ("tokens of a step, mean", f"{found['tokens_per_step']:.1f}")]
    if run.efficiency:
        low, high = min(run.efficiency), max(run.efficiency)
        rows.append(("batches", f"{len(run.efficiency):,}"))
        rows.append(("slot efficiency: rows somebody wanted", f"{statistics.fmean(run.efficiency):.0%}" + (
            f" ({low:.0%} to {high:.0%})" if len(run.efficiency) > 1 else "")))
        return rows
    return [*rows, ("Python's share: outside the forward pass", f"{found['python_share']:.1%}"),
            ("preemptions", f"{found['preemptions']:,}"),
            ("prompt tokens found in the prefix cache", f"{found['prefix_hit_rate']:.1%}")]
