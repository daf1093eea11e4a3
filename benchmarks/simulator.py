"""Is the simulator right? Step times are fitted to some runs of the engine; then other workloads, at other rates, run
on the simulator and on the engine, and their throughput and TTFT percentiles are compared.

SmolLM2-135M, float32, 16 rows, 256 tokens a step. A machine's pace drifts by the minute. So the calibration runs
before and after each workload, and the step times are fitted to both. How much decode steps changed is recorded.

    python benchmarks/simulator.py --rounds 2
"""

from __future__ import annotations

import argparse
import statistics

import record
import torch

from minillm.cache import blocks, prefix, tables
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.measure import metrics, workload
from minillm.measure.hardware import device_name
from minillm.measure.workload import Lengths, WorkItem
from minillm.serving import simulator, step_times
from minillm.serving.engine import StepRecord
from minillm.serving.replay import replay
from minillm.serving.scheduler import Scheduler

CALIBRATION = [
    workload.make_workload(24, prompt=Lengths(96, 1.0, 768), output=Lengths(20, 1.0, 96), seed=100),
    workload.make_workload(10, rate=1.2, prompt=Lengths(64, 1.0, 512), output=Lengths(20, 0.6, 64), seed=101),
]
USUAL = {"prompt": Lengths(128, 0.8, 512), "output": Lengths(32, 0.8, 128)}
HELD_OUT = {
    "Poisson, 1 a second": workload.make_workload(40, rate=1.0, seed=1, **USUAL),
    "Poisson, 2 a second": workload.make_workload(40, rate=2.0, seed=2, **USUAL),
    "Poisson, 8 a second": workload.make_workload(60, rate=8.0, seed=3, **USUAL),
    "bursts (cv 3), 1.5 a second": workload.make_workload(
        50, rate=1.5, cv=3.0, prompt=Lengths(64, 1.0, 512), output=Lengths(48, 0.6, 160), seed=4),
    "conversations of 3 turns, 4 shared prefixes": workload.make_workload(
        16, rate=0.5, prompt=Lengths(48, 0.8, 256), output=Lengths(32, 0.6, 96), prefixes=4, prefix_tokens=192, turns=3,
        think=2.0, seed=5),
}


def on_the_engine(llm: LLM, items: list[WorkItem], seed: int) -> tuple[metrics.Summary, list[StepRecord]]:
    """Serve a workload on the real clock; what came of it, and every step."""
    records: list[StepRecord] = []
    llm.engine.on_step = records.append

    def make_request(prompt: list[int], item: WorkItem):
        return llm.request(prompt, SamplingParams(temperature=0, max_tokens=item.output_tokens, ignore_eos=True))

    done = replay(items, llm.engine, make_request, llm.config.vocab_size, seed)
    assert not done.refused, done.refused
    return metrics.summarize(done.times), records


def simulated(llm: LLM, items: list[WorkItem], times: step_times.StepTime, seed: int) -> metrics.Summary:
    """The same workload, without a model."""
    def make_scheduler() -> Scheduler:
        pool = blocks.BlockPool(llm.cache.pool.num_blocks, llm.cache.pool.block_size)
        return Scheduler(tables.BlockTables(pool, prefix.HashIndex(pool)), llm.engine.scheduler.config)

    run = simulator.simulate(items, make_scheduler, times, context=llm.max_model_len, vocab=llm.config.vocab_size,
                             seed=seed)
    return metrics.summarize(run.requests)


def as_records(steps: list[StepRecord]) -> list[step_times.Record]:
    return [([count for _, _, count in step.rows], [start + count for _, start, count in step.rows], step.seconds)
            for step in steps]


def calibrate(llm: LLM, seed: int) -> list[step_times.Record]:
    return [step for place, items in enumerate(CALIBRATION)
            for step in as_records(on_the_engine(llm, items, seed + place)[1])]


def decode_step(records: list[step_times.Record]) -> float:
    """Median seconds of a step in which one sequence decodes."""
    return statistics.median(seconds for query_lens, _, seconds in records if list(query_lens) == [1])


def figures(summary: metrics.Summary) -> dict[str, float]:
    return {"output_tokens_per_s": summary.output_tokens_per_second, "ttft_p50_s": summary.ttft.p50,
            "ttft_p95_s": summary.ttft.p95, "ttft_p99_s": summary.ttft.p99, "tpot_p50_s": summary.tpot.p50}


def compare(llm: LLM, rounds: int) -> dict:
    """Name -> what was simulated and measured in each round, and by how much it is off."""
    found: dict = {name: [] for name in HELD_OUT}
    before, seed = calibrate(llm, 10_000), 0
    for number in range(rounds):
        for name, items in HELD_OUT.items():
            seed += 1
            measured = figures(on_the_engine(llm, items, seed)[0])
            after = calibrate(llm, 10_000 + 10 * seed)
            times = step_times.fit_times(before + after)
            expected = figures(simulated(llm, items, times, seed))
            found[name].append({"simulated": expected, "measured": measured, "fit": str(times),
                                "off_by": {key: expected[key] / measured[key] - 1 for key in measured},
                                "drift": decode_step(after) / decode_step(before) - 1})
            off = ", ".join(f"{key} {value:+.1%}" for key, value in found[name][-1]["off_by"].items())
            print(f"round {number + 1}, {name}: {off}; drift {found[name][-1]['drift']:+.1%}", flush=True)
            before = after
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    llm = LLM("smollm2", dtype="float32", device="cpu", max_num_seqs=16, max_num_batched_tokens=256, max_model_len=2048)
    llm.generate("Warm up.", SamplingParams(max_tokens=8, ignore_eos=True))
    found = compare(llm, rounds)
    results: dict = {"threads": torch.get_num_threads(), "rounds": rounds, "workloads": {}}
    for name, runs in found.items():
        middle = {key: statistics.median(run["off_by"][key] for run in runs) for key in runs[0]["off_by"]}
        results["workloads"][name] = {"requests": len(HELD_OUT[name]), "off_by": middle, "runs": runs}
        print(f"{name} ({len(HELD_OUT[name])} requests): "
              + ", ".join(f"{key} {value:+.1%}" for key, value in middle.items()))
    path = record.write("simulator", device_name("cpu"), results, {"torch": torch.__version__})
    print(f"recorded in {path.relative_to(record.RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
