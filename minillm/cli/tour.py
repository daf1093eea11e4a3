"""`minillm tour`: in a minute or two, a real model answers, and its speed is predicted, then measured."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minillm.cli.lines import console, count_of, duration, note, print_json, size, table
from minillm.cli.machine import MEASURING
from minillm.cli.models import ensure

if TYPE_CHECKING:
    from rich.console import Console

    from minillm.llm import LLM
    from minillm.measure.cost import Prediction
    from minillm.measure.hardware import Machine

QUESTION = "What is the capital of France?"
PROMPT_LENGTHS = (32, 128, 512)
DECODED = 16  # tokens after the first, at each length
ROUNDS = 3
BEATEN = 0.95  # a ratio below it is more than the noise of a clock


@dataclass(frozen=True)
class Row:
    """One prompt length: predictions (counted FLOPs and bytes over the machine's measured peaks) and medians, in s."""

    prompt_tokens: int
    ttft: float
    tpot: float
    predicted_ttft: Prediction
    predicted_tpot: Prediction

    @property
    def ttft_ratio(self) -> float:
        return self.ttft / self.predicted_ttft.seconds

    @property
    def tpot_ratio(self) -> float:
        return self.tpot / self.predicted_tpot.seconds


def register(app: typer.Typer) -> None:
    app.command()(tour)


def tour(as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")] = False,
         ) -> None:
    """Let a real model answer; predict and measure its speed.

    Fetches SmolLM2 (93 MB) if it is not here, asks it one question, measures this machine, and compares. A minute or
    two on two cores.

    \b
    Example:
      minillm tour
    """
    ensure("smollm2")
    out = console(quiet=as_json)
    llm = _meet(out)
    answer = _ask(llm, out)
    machine = _machine(llm, out)
    rows = measure_rows(llm, machine)
    _show_rows(rows, machine, llm, out)
    _show_next(out)
    if as_json:
        print_json({"question": QUESTION, "answer": answer, "machine": machine.name, "rows": [_plain(r) for r in rows]})


def measure_rows(llm: LLM, machine: Machine) -> list[Row]:
    """Predict, then measure, each prompt length: a token-by-token run of the model, medians of ROUNDS."""
    from minillm.decoding.sampling import SamplingParams
    from minillm.measure.cost import predict_step

    shape, dtype = llm.config.shape(), str(llm.model.dtype).removeprefix("torch.")
    width = llm.model.dtype.itemsize
    text = llm.tokenizer.encode("The quick brown fox jumps over the lazy dog. ") * 64
    params = SamplingParams(temperature=0, max_tokens=DECODED + 1, ignore_eos=True)
    llm.generate(text[: PROMPT_LENGTHS[0]], params)  # the first run pays for what happens once
    rows = []
    for n in PROMPT_LENGTHS:
        middle = n + DECODED // 2  # the context at which a decode step is predicted
        prefill = predict_step(shape, [n], [n], machine, dtype, width, width)
        decode = predict_step(shape, [1], [middle], machine, dtype, width, width)
        times = [llm.generate(text[:n], params)[0].times for _ in range(ROUNDS)]
        rows.append(Row(n, statistics.median(t.ttft for t in times), statistics.median(t.tpot for t in times),
                        prefill, decode))
    return rows


def explain_rows(rows: list[Row], machine: Machine, dtype: str = "float32") -> list[str]:
    """One sentence on the TTFT of the longest prompt and one on its TPOT, from what was counted and measured."""
    row = rows[-1]
    rate, peak = row.predicted_ttft.flops / row.ttft, machine.peak_flops[dtype]
    read, bandwidth = row.predicted_tpot.bytes / row.tpot, machine.bandwidth
    ttft = (f"{row.prompt_tokens} tokens at once are arithmetic. The model computed {rate / 1e9:,.0f} GFLOP/s, "
            f"{rate / peak:.0%} of the best matrix product here: its matrices are smaller, and norms, RoPE and softmax "
            "are no matrix products.")
    tpot = (f"each new token reads every weight again. The model read {read / 1e9:.1f} GB/s, {read / bandwidth:.0%} "
            "of what this machine can: products with one token read more slowly than one long read, and two thousand "
            "small operations have to be started. Lesson 1 measures both.")
    beaten = ("faster than predicted: the machine was busier when its peaks were read. minillm measure --refresh reads "
              "them again.")
    return ["TTFT: " + (beaten if row.ttft_ratio < BEATEN else ttft),
            "TPOT: " + (beaten if row.tpot_ratio < BEATEN else tpot)]


def _meet(out: Console) -> LLM:
    note("minillm: loading the model")
    from minillm.llm import LLM

    begin = time.perf_counter()
    llm = LLM("smollm2", enable_prefix_caching=False)  # a prompt is measured several times, each time from its start
    seconds = time.perf_counter() - begin
    shape = llm.config.shape()
    out.print("\n[bold]1. A real model answers[/]\n")
    out.print(f"SmolLM2-135M-Instruct: {shape.params / 1e6:.1f} million weights, "
              f"{size(llm.model.dtype.itemsize * shape.params)} in {str(llm.model.dtype).removeprefix('torch.')} on "
              f"{llm.device}, loaded in {seconds:.1f} s.\n")
    return llm


def _ask(llm: LLM, out: Console) -> str:
    from minillm.decoding.sampling import SamplingParams

    out.print(f"> {QUESTION}")
    for delta in llm.stream([{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=64)):
        out.print(delta.text, end="", markup=False)
    times = delta.output.times
    out.print(f"\n\nThe first token came after {duration(times.ttft)}, then {1 / times.tpot:.1f} tokens/s.")
    return delta.output.outputs[0].text


def _machine(llm: LLM, out: Console) -> Machine:
    from minillm.measure.hardware import measure_machine

    out.print("\n[bold]2. What this machine can do[/]\n")
    note(MEASURING)
    machine = measure_machine(llm.device)
    threads = f", {count_of(machine.threads, 'thread')}" if machine.device == "cpu" else ""
    dtype = str(llm.model.dtype).removeprefix("torch.")
    out.print(f"{machine.name}{threads}: reads {machine.read_bandwidth / 1e9:.1f} GB/s from memory and computes "
              f"{machine.peak_flops[dtype] / 1e9:,.0f} GFLOP/s in {dtype}, measured {machine.date}.")
    return machine


def _show_rows(rows: list[Row], machine: Machine, llm: LLM, out: Console) -> None:
    out.print("\n[bold]3. Predicted, then measured[/]\n")
    out.print("TTFT, time to first token: the prompt goes through the model at once (prefill).\n"
              "TPOT, time per output token: then one token a step (decode).\n"
              "Predicted: FLOPs and bytes of the step, count_of, over what this machine can do.")
    shown = table("prompt", "TTFT predicted", "measured", "ratio", "TPOT predicted", "measured", "ratio")
    for row in rows:
        shown.add_row(str(row.prompt_tokens), duration(row.predicted_ttft.seconds), duration(row.ttft),
                      f"{row.ttft_ratio:.2f}", duration(row.predicted_tpot.seconds), duration(row.tpot),
                      f"{row.tpot_ratio:.2f}")
    out.print(shown)
    for sentence in explain_rows(rows, machine, str(llm.model.dtype).removeprefix("torch.")):
        out.print(sentence)


def _show_next(out: Console) -> None:
    out.print("\n[bold]4. Your turn[/]\n")
    steps = [("minillm check 0.1", "the first exercise, in mine/exercises"),
             ("jupyter lab mine/notebooks", "the lessons, at http://localhost:8888/lab"),
             ("minillm chat", "talk with the model")]
    if Path(".venv/bin/activate").is_file():
        steps.insert(0, (". .venv/bin/activate", "once in each terminal"))
    for command, what in steps:
        out.print(f"  [bold]{command:<28}[/]{what}")


def _plain(row: Row) -> dict[str, Any]:
    return {"prompt_tokens": row.prompt_tokens,
            "ttft_predicted_s": row.predicted_ttft.seconds, "ttft_s": row.ttft, "ttft_ratio": row.ttft_ratio,
            "ttft_bound": row.predicted_ttft.bound,
            "tpot_predicted_s": row.predicted_tpot.seconds, "tpot_s": row.tpot, "tpot_ratio": row.tpot_ratio,
            "tpot_bound": row.predicted_tpot.bound}
