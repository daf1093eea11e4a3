"""`minillm measure` and `minillm plan`: what this machine can do, and what a model would do on any machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minillm.cli.engine import Using, exchanged
from minillm.cli.lines import closest, console, count_of, duration, note, print_json, size, table
from minillm.cli.models import check_device, check_model

if TYPE_CHECKING:
    from minillm.measure.hardware import Accelerator, Machine
    from minillm.measure.plan import Plan
    from minillm.measure.shape import ModelShape

MEASURING = "minillm: measuring this machine (about ten seconds, unless kept from before)"
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(plan)
    app.command()(measure)


def measure(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, even if a result is kept.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda when there is one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine: bandwidth, matrix products, ridge points.

    About ten seconds the first time; the result is kept and shown again until --refresh.

    \b
    Examples:
      minillm measure
      minillm measure --refresh --json
    """
    from minillm.measure.hardware import measure_machine, ridge

    check_device(device)
    note(MEASURING)
    machine = measure_machine(device, refresh=refresh)
    ridges = {dtype: ridge(machine, dtype) for dtype in machine.peak_flops}
    if as_json:
        print_json({**asdict(machine), "ridge_flop_per_byte": ridges})
    else:
        _show_machine(machine, ridges)


def _show_machine(machine: Machine, ridges: dict[str, float]) -> None:
    threads = f", {count_of(machine.threads, 'thread')}" if machine.device == "cpu" else ""
    moves = table("memory", "GB/s")
    moves.add_row("read (what a decode step lives on)", f"{machine.read_bandwidth / 1e9:.1f}")
    moves.add_row("copy (bytes read plus bytes written)", f"{machine.copy_bandwidth / 1e9:.1f}")
    computes = table("matrix product", "GFLOP/s", "ridge, FLOP/byte")
    for dtype, flops in machine.peak_flops.items():
        computes.add_row(dtype, f"{flops / 1e9:,.0f}", f"{ridges[dtype]:.1f}")
    out = console()
    out.print(f"[bold]{machine.name}[/] ({machine.device}{threads}), measured {machine.date}")
    out.print(moves)
    out.print(computes)
    out.print("A step that does fewer FLOP per byte than the ridge waits for memory, one that does more for "
              "arithmetic. Decoding one request does about 2 FLOP for each weight that it reads.")


def plan(
    model: Annotated[str, typer.Option(help="A known shape, smollm2, a folder with config.json, or a .gguf file.")]
    = "smollm2",
    hardware: Annotated[str, typer.Option(help="A known accelerator, or 'this': this machine, measured.")] = "this",
    bits: Annotated[int, typer.Option(help="Bits per weight: 4, 8, 16 or 32.")] = 16,
    kv_bits: Annotated[int, typer.Option(help="Bits per value of the KV cache: 4, 8, 16 or 32.")] = 16,
    context: Annotated[int | None, typer.Option(help="Tokens per request. Default: the model's, at most 4096.")] = None,
    batch: Annotated[int, typer.Option(help="Requests that decode together.")] = 1,
    mean_tokens: Annotated[int | None, typer.Option(help="Tokens that a request really holds, on average; for the "
                                                    "paged cache. Default: a quarter of the context.")] = None,
    price: Annotated[float | None, typer.Option(help="Dollars per hour for the hardware.")] = None,
    using: Using = None,
    as_json: AsJson = False,
) -> None:
    """Predict memory, latency and cost of a model on hardware.

    From arithmetic alone: times are rooflines, which no implementation beats and real ones miss. Exit code 1 when
    the batch does not fit.

    \b
    Examples:
      minillm plan --model llama-2-7b --hardware h100 --batch 8 --price 2.5
      minillm plan --model llama-2-7b --hardware t4 --bits 4
      minillm plan --model smollm2 --hardware this --bits 32 --kv-bits 32
    """
    from minillm.measure import plan as planning

    shape, sheet = find_shape(model), find_hardware(hardware)
    with exchanged(using) as report:
        shape = find_shape(model) if report else shape
        made = planning.plan(shape, sheet, weight_bits=bits, kv_bits=kv_bits, context=context, batch=batch,
                             mean_tokens=mean_tokens, price_per_hour=price)
    if as_json:
        bounds = {"ttft_bound": made.prefill.bound, "tpot_bound": made.decode.bound}
        print_json({**asdict(made), "ttft_s": made.prefill.seconds, "tpot_s": made.decode.seconds, **bounds})
    else:
        _show_plan(made)
    raise typer.Exit(0 if made.fits else 1)


def find_shape(name: str) -> ModelShape:
    """The shape of a known model (by its name or hub id) or of a local folder or GGUF file, no weights read.

    Raises ValueError with the nearest names for an unknown one.
    """
    from minillm.measure import shape

    known = "smollm2-135m" if name == "smollm2" else name.split("/")[-1].lower()
    if known in shape.KNOWN_SHAPES:
        return shape.ModelShape(**asdict(shape.KNOWN_SHAPES[known]))  # anew: the reader's class, where it is exchanged
    check_model(name)
    path = Path(name).expanduser()
    if path.is_dir():
        from minillm.model import config_files
        from minillm.model.safetensors import read_json

        return config_files.from_hf(read_json(path / "config.json")).shape()
    if path.is_file():
        from minillm.model.gguf import read_gguf

        return read_gguf(path).config.shape()
    raise ValueError(f"--model is '{name}': expected {closest(known, ['smollm2', *shape.KNOWN_SHAPES])}, "
                     "a folder with a config.json, or a .gguf file")


def find_hardware(name: str) -> Accelerator | Machine:
    """A datasheet by its short name, or this machine, measured. Raises ValueError with the nearest names."""
    from minillm.measure.hardware import DATASHEETS, measure_machine

    known = name.lower().replace("-", "").replace(" ", "")
    if known in DATASHEETS:
        return DATASHEETS[known]
    if known != "this":
        raise ValueError(f"--hardware is '{name}': expected {closest(known, ['this', *DATASHEETS])}")
    note(MEASURING)
    return measure_machine()


def _show_plan(made: Plan) -> None:
    memory = table("memory", "size")
    memory.add_row("weights", f"{size(made.weight_bytes)} of {size(made.memory_bytes)}")
    memory.add_row("KV cache, one token", size(made.kv_bytes_per_token))
    memory.add_row(f"KV cache, {made.batch} × {count_of(made.context, 'token')}",
                   size(made.kv_bytes_per_token * made.context * made.batch))
    memory.add_row(f"requests of {count_of(made.context, 'token')} that fit", f"{made.requests_that_fit:,}")
    kept = table("KV cache kept in", "one token", f"contiguous: {made.context:,} reserved",
                 f"paged: {made.mean_tokens:,} held")
    for row in made.capacities:
        kept.add_row(row.kept_as, size(row.bytes_per_token), f"{row.contiguous:,}", f"{row.paged:,}")
    times = table("predicted, at best", "time", "tokens/s", "bound by")
    times.add_row(f"TTFT: prefill of {count_of(made.context, 'token')}", duration(made.prefill.seconds),
                  f"{made.context / made.prefill.seconds:,.0f}", made.prefill.bound)
    times.add_row(f"TPOT: decode, {made.batch} at a time", duration(made.decode.seconds),
                  f"{made.tokens_per_second:,.0f}", made.decode.bound)
    out = console()
    out.print(f"[bold]{made.model}[/] on [bold]{made.hardware}[/]: {made.weight_bits}-bit weights, "
              f"{made.kv_bits}-bit KV cache")
    out.print(memory)
    out.print("Requests that fit at once:")
    out.print(kept)
    out.print(times)
    if made.dollars_per_million_tokens is not None:
        out.print(f"${made.dollars_per_million_tokens:.3g} per million output tokens "
                  f"at ${made.price_per_hour:g} an hour.")
    if not made.fits:
        out.print(f"[bold]Does not fit:[/] {count_of(made.batch, 'request')} of {count_of(made.context, 'token')}, "
                  f"where {made.requests_that_fit:,} fit beside the weights and a tenth left free.")
