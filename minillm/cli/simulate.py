"""`minillm simulate`: a workload on a model and accelerators that are not here. Every figure is *simulated*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.cli import figures
from minillm.cli.engine import Using, exchanged
from minillm.cli.flags import Goal, Limits, Work, at_most, items_of, takes
from minillm.cli.lines import bytes_of, console, count_of, print_json, size
from minillm.cli.machine import AsJson, find_hardware, find_shape

if TYPE_CHECKING:
    from minillm.measure.hardware import Accelerator, Machine
    from minillm.measure.metrics import SLO
    from minillm.measure.plan import Plan
    from minillm.measure.shape import ModelShape
    from minillm.measure.workload import WorkItem
    from minillm.serving.simulator import Simulation
    from minillm.serving.step_times import StepTime

MOST_REPLICAS = 1000
WORK = Work(requests=500, rate=10.0, prompt_tokens=512, output_tokens=128)
LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=2048)


@dataclass(frozen=True)
class Cluster:
    """How many machines, how the router spreads requests, and how well they run."""

    replicas: Annotated[int, typer.Option(help="Copies of the model, each on a machine of its own, behind one "
                                          "router.")] = 1
    route: Annotated[str, typer.Option(help="Which replica takes a request: round-robin (in turn), least-loaded or "
                                       "prefix-aware (who knows most of its prompt).")] = "round-robin"
    margin: Annotated[int, typer.Option(help="For prefix-aware: tokens that a replica may have more to do than the "
                                        "idlest and still be chosen.")] = 4096
    efficiency: Annotated[float, typer.Option(help="Share of the roofline that a step reaches; 1: what none can "
                                              "beat.")] = 1.0
    overhead: Annotated[float, typer.Option(help="Seconds that every step takes besides.")] = 0.0


    def check(self) -> None:
        """Raises ValueError for a flag that another makes useless, or more replicas than are sensible."""
        at_most("--replicas", self.replicas, MOST_REPLICAS)
        if self.margin != Cluster.margin and self.route in ("round-robin", "least-loaded"):
            raise ValueError(f"--margin and --route {self.route}: expected --route prefix-aware")


CLUSTER = Cluster()


class Counted:
    """Step times, with the rows and tokens of all steps counted."""

    def __init__(self, times: StepTime) -> None:
        self.times = times
        self.rows = self.tokens = 0

    def __call__(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> float:
        self.rows += len(query_lens)
        self.tokens += sum(query_lens)
        return self.times(query_lens, context_lens)


def register(app: typer.Typer) -> None:
    app.command()(simulate)


@takes(cluster=CLUSTER, work=WORK, limits=LIMITS, goal=Goal())
def simulate(
    cluster: Cluster,
    work: Work,
    limits: Limits,
    goal: Goal,
    model: Annotated[str, typer.Option(help="A known shape, smollm2, a folder with config.json, or a .gguf file.")]
    = "llama-3-8b",
    hardware: Annotated[str, typer.Option(help="A known accelerator, or 'this': this machine, measured.")] = "h200",
    bits: Annotated[int, typer.Option(help="Bits per weight: 4, 8, 16 or 32.")] = 16,
    kv_bits: Annotated[int, typer.Option(help="Bits per value of the KV cache: 4, 8, 16 or 32.")] = 16,
    using: Using = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a workload on accelerators that are not here.

    The engine's own scheduler runs on a clock: a step takes what the roofline of its FLOPs and bytes says. Steps,
    preemptions and prefix hits are counted; seconds are simulated. Exit code 1 when a request could never run.

    \b
    Examples:
      minillm simulate --model llama-3-8b --hardware h200
      minillm simulate --rate 40 --slo-ttft 0.5 --slo-tpot 0.02
      minillm simulate --replicas 4 --route least-loaded --rate 80
      minillm simulate --efficiency 0.6 --overhead 0.002 --json
    """
    from minillm.measure import plan as planning

    cluster.check()
    limits.check()
    slo, shape, sheet = goal.slo(), find_shape(model), find_hardware(hardware)
    made = planning.plan(shape, sheet, weight_bits=bits, kv_bits=kv_bits)
    blocks, items = blocks_of(made, limits), items_of(work, WORK)
    with exchanged(using):
        found, counted = run(shape, sheet, made, blocks, items, cluster, limits, work.seed)
    told = setting(made, blocks, cluster, limits)
    if as_json:
        print_json({**told, **as_plain(found, counted, slo)})
    else:
        show(found, counted, items, slo, told)
    raise typer.Exit(1 if found.refused else 0)


def blocks_of(made: Plan, limits: Limits) -> int:
    """KV blocks of one replica: what --kv-cache-memory says, or all memory but a tenth and the weights.

    Raises ValueError when there is no room for one.
    """
    from minillm.measure.plan import BLOCK, RESERVE

    free = made.memory_bytes * (1 - RESERVE) - made.weight_bytes
    if free < BLOCK * made.kv_bytes_per_token:
        raise ValueError(f"{made.model} takes {size(made.weight_bytes)} in {made.weight_bits} bits, and "
                         f"{made.hardware} has {size(made.memory_bytes)}: expected less than {1 - RESERVE:.0%} of it")
    if limits.kv_cache_memory is not None:
        asked = bytes_of("--kv-cache-memory", limits.kv_cache_memory)
        if not BLOCK * made.kv_bytes_per_token <= asked <= free:
            raise ValueError(f"--kv-cache-memory is '{limits.kv_cache_memory}': expected "
                             f"{size(BLOCK * made.kv_bytes_per_token)}, one block, to {size(free)}, what is free")
        free = asked
    return int(free // (BLOCK * made.kv_bytes_per_token))


def run(shape: ModelShape, sheet: Accelerator | Machine, made: Plan, blocks: int, items: Sequence[WorkItem],
        cluster: Cluster, limits: Limits, seed: int) -> tuple[Simulation, Counted]:
    """The simulation, and what its steps held."""
    from minillm.cache import build
    from minillm.measure.plan import BLOCK
    from minillm.serving import scheduler, simulator, step_times

    build.check(BLOCK, "auto", limits.prefix_index)
    config = scheduler.SchedulerConfig(limits.max_num_seqs, limits.max_num_batched_tokens, policy=limits.policy)
    times = step_times.roofline_times(shape, sheet, made.compute_dtype, made.weight_bits / 8, made.kv_bits / 8,
                                      efficiency=cluster.efficiency, overhead=cluster.overhead)
    counted = Counted(times)
    found = simulator.simulate(
        items, lambda: scheduler.Scheduler(build.block_tables(blocks, BLOCK, limits.prefix_index), config), counted,
        replicas=cluster.replicas, route=cluster.route, margin=cluster.margin, context=shape.context,
        vocab=shape.vocab, seed=seed)
    return found, counted


def setting(made: Plan, blocks: int, cluster: Cluster, limits: Limits) -> dict[str, Any]:
    """What was simulated on what."""
    return {"simulated": True, "model": made.model, "hardware": made.hardware, "replicas": cluster.replicas,
            "route": cluster.route, "weight_bits": made.weight_bits, "kv_bits": made.kv_bits, "kv_blocks": blocks,
            "efficiency": cluster.efficiency, "overhead_s": cluster.overhead, "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens}


def as_plain(found: Simulation, counted: Counted, slo: SLO | None) -> dict[str, Any]:
    from minillm.measure.metrics import summarize

    summary = summarize(found.requests, slo) if found.times else None
    steps = sum(found.steps)
    plain = figures.plain(summary, found.requests, slo, found.refused)
    plain |= {"steps": steps, "steps_of_replicas": found.steps, "busy_s_of_replicas": found.busy_seconds}
    if steps:
        plain |= {"rows_per_step": counted.rows / steps, "tokens_per_step": counted.tokens / steps}
    return {**plain, "preemptions": found.preemptions, "prefix_hit_rate": found.hit_rate}


def show(found: Simulation, counted: Counted, items: Sequence[WorkItem], slo: SLO | None, told: dict[str, Any]) -> None:
    from minillm.measure.metrics import summarize

    out = console()
    count = f"{told['replicas']} × " if told["replicas"] > 1 else ""
    out.print(f"[bold]{told['model']}[/] on [bold]{count}{told['hardware']}[/], simulated: {told['weight_bits']}-bit "
              f"weights, {told['kv_bits']}-bit KV cache in {count_of(told['kv_blocks'], 'block')}"
              f"{' each' if count else ''}; {figures.described(items)}")
    out.print(f"Step time: roofline of its FLOPs and bytes / {told['efficiency']:g} (efficiency) + "
              f"{told['overhead_s']:g} s (overhead). Left out: whatever else real kernels, launches, sampling and "
              "networks cost.")
    if found.times:
        summary = summarize(found.requests, slo)
        out.print(figures.latencies("simulated", summary))
        rows = [*figures.rates(summary, found.requests, slo), *step_rows(found, counted, summary.seconds)]
        out.print(figures.totals("simulated", rows))
    figures.show_refused(out, found.refused)


def step_rows(found: Simulation, counted: Counted, seconds: float) -> list[tuple[str, str]]:
    steps = sum(found.steps)
    of = f" ({min(found.steps):,} to {max(found.steps):,} each)" if len(found.steps) > 1 else ""
    busy = sum(found.busy_seconds) / len(found.steps) / seconds if seconds else 1.0
    return [("steps", f"{steps:,}{of}"), ("rows of a step, mean", f"{counted.rows / steps:.1f}"),
            ("tokens of a step, mean", f"{counted.tokens / steps:.1f}"), ("busy", f"{busy:.0%} of the time"),
            ("preemptions", f"{found.preemptions:,}"),
            ("prompt tokens found in the prefix cache", f"{found.hit_rate:.1%}")]
