"""The Triton kernels on this GPU, case by case, the most important first: prefill attention against SDPA's flash
backend, in alternation; paged decode, the fused norm, SwiGLU and RoPE against the bandwidth of a copy.

A time is the median of CUDA events around a call, over --rounds rounds; before each call 1 GiB is written, which
empties the L2 cache and lets the host run ahead of the GPU, so that no launch is waited for. A ratio is the median of
the rounds' ratios. Bandwidth counts the bytes that a kernel must move, against a copy's bytes read and written.

The record is written after each case. A later run does what is missing, as long as GPU, versions and kernels are the
same; it starts no case that might not end within --budget-s. Exit code 1 where a case failed.

    python benchmarks/gpu_kernels.py
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import record
import torch

from minillm.measure.hardware import device_name

if TYPE_CHECKING:
    from gpu_cases import Work

HERE = Path(__file__).parent
FLUSH_BYTES = 2**30  # twenty times the largest L2 cache
Figures = dict[str, Any]


def event_times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, in turn; every other round goes backwards. One round before is not timed.

    Before each the L2 cache is filled with something else, by reading: lines written would have to go back to memory
    within the time of the call that follows.
    """
    flush = torch.zeros(FLUSH_BYTES // 4, device="cuda", dtype=torch.float32)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        events = {}
        for name in list(calls) if turn % 2 == 0 else reversed(list(calls)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.sum()
            begin.record()
            calls[name]()
            end.record()
            events[name] = begin, end
        torch.cuda.synchronize()
        if turn >= 0:
            for name, (begin, end) in events.items():
                samples[name].append(begin.elapsed_time(end) / 1e3)  # from ms
    return samples


def figures(work: Work, samples: dict[str, list[float]], copy_bandwidth: float | None) -> Figures:
    """What is recorded of a case: for each call seconds and rates, and how ours compares with the other."""
    found: Figures = {}
    for name, seconds in samples.items():
        median = statistics.median(seconds)
        found[name] = {"seconds": median, "fastest_s": min(seconds), "slowest_s": max(seconds)}
        if work.flops:
            found[name]["tflops_per_s"] = work.flops / median / 1e12
        if work.bytes:
            found[name]["gb_per_s"] = work.bytes / median / 1e9
            if copy_bandwidth:
                found[name]["of_copy"] = work.bytes / median / copy_bandwidth
    for peer in ("sdpa", "torch"):
        if peer in samples:
            found[f"speed_over_{peer}"] = statistics.median(b / a for a, b in zip(samples["ours"], samples[peer]))
    return found


def measure(name: str, kept: Figures, rounds: int) -> Figures:
    """One case on the GPU; an error is recorded as one line, and tried again by the next run."""
    from gpu_cases import CASES

    try:
        work = CASES[name]("cuda")
        failed = compile_all(work.calls)
        copied = None if name == "copy" else kept["copy"]["ours"]["gb_per_s"] * 1e9
        return {**figures(work, event_times(work.calls, rounds), copied), **failed}
    except Exception as error:  # of any kind: one kernel that fails is no reason to measure none
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    finally:
        torch.cuda.empty_cache()


def compile_all(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Call each once, so that it is compiled, and drop those that fail: {"… failed": why}. Ours must not."""
    failed = {}
    for name in list(calls):
        try:
            calls[name]()
        except Exception as error:  # of any kind: an alternative, or a peer, that this GPU does not run
            if name == "ours":
                raise
            del calls[name]
            failed[f"{name} failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return failed


def run(names: list[str], kept: Figures, one: Callable[[str, Figures], Figures], save: Callable[[Figures], None],
        budget_s: float, clock: Callable[[], float] = time.monotonic) -> Figures:
    """Measure the cases that `kept` lacks, saving after each; stop where the longest so far would exceed the budget."""
    begin, longest, results = clock(), 0.0, dict(kept)
    for name in names:
        if name in results and "error" not in results[name]:
            continue
        started = clock()
        if started - begin + longest > budget_s:
            print(f"{started - begin:.0f} s: the rest is for another run", flush=True)
            break
        results[name] = one(name, results)
        longest = max(longest, clock() - started)
        print(line(name, results[name]), flush=True)
        save(results)
    return results


def line(name: str, found: Figures) -> str:
    if "error" in found:
        return f"{name:32} {found['error']}"
    ours = found["ours"]
    parts = [f"{ours['seconds'] * 1e6:9.1f} µs"]
    parts += [f"{ours[key]:8.1f} {unit}" for key, unit in (("tflops_per_s", "TFLOP/s"), ("gb_per_s", "GB/s"))
              if key in ours]
    parts += [f"{ours['of_copy']:.0%} of a copy"] if "of_copy" in ours else []
    parts += [f"{value:.2f} x {key.removeprefix('speed_over_')}" for key, value in found.items()
              if key.startswith("speed_over_")]
    return f"{name:32} " + "  ".join(parts)


def fingerprint() -> str:
    """Of the kernels and of these files: what is measured, whether committed or not."""
    digest = hashlib.sha256()
    for path in (*sorted((HERE.parent / "kernels").glob("*.py")), *sorted(HERE.glob("gpu_*.py"))):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def resume(path: Path, identity: Figures) -> Figures:
    """The cases of an earlier run on the same GPU, versions and kernels; of none otherwise."""
    try:
        kept = json.loads(path.read_text())["results"]
        return kept["cases"] if {key: kept[key] for key in identity} == identity else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=460, help="seconds in which to end; 8 minutes, less what "
                        "starting takes")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions of each call, at least 10")
    parser.add_argument("--case", action="append", help="only this one, and the copy (may be repeated)")
    arguments = parser.parse_args()
    if arguments.rounds < 10:
        parser.error(f"--rounds is {arguments.rounds}: expected at least 10")
    if not torch.cuda.is_available():
        print("gpu_kernels.py measures a GPU: expected one that torch.cuda sees", file=sys.stderr)
        return 2
    from gpu_cases import CASES  # and with them Triton

    unknown = [name for name in arguments.case or () if name not in CASES]
    if unknown:
        parser.error(f"--case is '{unknown[0]}': expected one of {', '.join(CASES)}")
    return measure_all(["copy", *arguments.case] if arguments.case else list(CASES), arguments)


def measure_all(names: list[str], arguments: argparse.Namespace) -> int:
    """Measure on the GPU, record, and return the exit code."""
    import triton

    device = device_name("cuda")
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": str(torch.version.cuda)}
    identity = {"gpu": device, "kernels": fingerprint(), "rounds": arguments.rounds, **versions}

    def save(cases: Figures) -> Path:
        return record.write("gpu_kernels", device, {**identity, "cases": cases}, versions)

    kept = resume(record.path("gpu_kernels", device), identity)
    results = run(names, kept, lambda name, found: measure(name, found, arguments.rounds), save, arguments.budget_s)
    print(f"recorded in {save(results).relative_to(record.RESULTS.parent.parent)}")
    return 1 if any("error" in found for found in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
