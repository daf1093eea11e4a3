"""64 requests with log-normal output lengths on SmolLM2-135M, float32, greedy, 16 rows at most: static batches, dynamic
batches, continuous batching, transformers' padded batches and transformers' continuous batching, in alternation.

Static and dynamic are `minillm.serving.batching`, on the same model as the engine. transformers runs batches of 16
through `generate`, each to its longest answer, and all through `init_continuous_batching`, 16 at a time and 512 tokens
a step; the steps of the latter are not counted. A round runs each once, in turn; the figures are medians over rounds,
and a ratio is the median of the rounds' ratios. Steps are counted, not timed.

    python benchmarks/batching.py --rounds 5
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable

import record
import torch
import transformers

from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.measure import workload
from minillm.measure.hardware import device_name
from minillm.serving import batching
from minillm.serving.scheduler import Scheduler, SchedulerConfig, Sequence

SLOTS = 16
PROMPT = 32
Run = tuple[float, int, list[list[int]]]  # seconds, steps, tokens of each request


def requests_of(llm: LLM, prompts: list[list[int]], lengths: list[int]) -> list:
    return [llm.request(prompt, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
            for prompt, length in zip(prompts, lengths)]


def in_batches(llm: LLM, prompts: list[list[int]], lengths: list[int], timeout: float | None, gap: float = 0.0) -> Run:
    """Static (timeout None) or dynamic batches; request i comes `gap` · i seconds after the first."""
    requests, records = requests_of(llm, prompts, lengths), []
    cache = ContiguousKVCache(llm.model.kv_specs(), SLOTS, PROMPT + max(lengths))
    start = time.perf_counter()
    for place, request in enumerate(requests):
        request.arrival = start + gap * place
    batching.serve(llm.model, cache, requests, SLOTS, timeout, records.append)
    return time.perf_counter() - start, len(records), [request.answers[0].token_ids for request in requests]


def continuous(llm: LLM, prompts: list[list[int]], lengths: list[int], gap: float = 0.0) -> Run:
    requests, records = requests_of(llm, prompts, lengths), []
    llm.engine.on_step = records.append
    start = time.perf_counter()
    waiting = [(start + gap * place, request) for place, request in enumerate(requests)]
    while waiting or llm.engine.has_unfinished:
        while waiting and waiting[0][0] <= time.perf_counter():
            llm.engine.add(waiting.pop(0)[1])
        if llm.engine.has_unfinished:
            llm.engine.step()
    return time.perf_counter() - start, len(records), [request.answers[0].token_ids for request in requests]


def hub_padded(hub, prompts: list[list[int]], lengths: list[int]) -> Run:
    """transformers' generate over batches of 16, prompts of one length, each batch to its longest answer."""
    start, steps, tokens = time.perf_counter(), 0, []
    for first in range(0, len(prompts), SLOTS):
        ids, asked = torch.tensor(prompts[first : first + SLOTS]), lengths[first : first + SLOTS]
        out = hub.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max(asked),
                           min_new_tokens=max(asked), do_sample=False, pad_token_id=0)
        tokens += [row[PROMPT : PROMPT + length].tolist() for row, length in zip(out, asked)]
        steps += max(asked)
    return time.perf_counter() - start, steps, tokens


def hub_continuous(hub, prompts: list[list[int]], lengths: list[int]) -> Run:
    """transformers' own continuous batching, with as many rows and tokens a step as ours."""
    limits = transformers.ContinuousBatchingConfig(num_blocks=2 * len(prompts), max_batch_tokens=512,
                                                   max_requests_per_batch=SLOTS, allow_block_sharing=False)
    start = time.perf_counter()
    manager = hub.init_continuous_batching(continuous_batching_config=limits)
    manager.start()
    names = [manager.add_request(prompt, max_new_tokens=length) for prompt, length in zip(prompts, lengths)]
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=120)
        if result is None or result.error:
            raise RuntimeError(f"transformers' continuous batching: {result and result.error}")
        if result.is_finished():
            found[result.request_id] = result.generated_tokens
    took = time.perf_counter() - start
    manager.stop(block=True)
    return took, 0, [list(found[name]) for name in names]


def line_cost(waiting: int) -> float:
    """Median seconds of a scheduler step with 8 running and so many waiting requests."""
    from minillm.cache import blocks, tables

    pool = blocks.BlockPool(1000)
    one = Scheduler(tables.BlockTables(pool), SchedulerConfig(8, 64))
    for seq_id in range(waiting + 8):
        one.add(Sequence(seq_id, [1, 2, 3], 200))
    times = []
    for _ in range(200):
        start = time.perf_counter()
        plan = one.schedule()
        one.update(plan, {row.seq_id: [0] for row in plan.rows})
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between arrivals that are spread")
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)

    llm = LLM("smollm2", dtype="float32", device="cpu", max_num_seqs=SLOTS, max_model_len=512,
              enable_prefix_caching=False)
    hub = transformers.AutoModelForCausalLM.from_pretrained(
        llm.loaded.path.parent, gguf_file=llm.loaded.path.name, dtype=torch.float32).eval()
    hub.generation_config.eos_token_id, hub.generation_config.do_sample = None, False
    lengths = workload.lognormal_lengths(arguments.requests, 48, 1.0, 256, seed=1)
    text = llm.tokenizer.encode("The history of computing is longer than the history of computers. " * 200)
    prompts = [text[place : place + PROMPT] for place in range(arguments.requests)]
    runs: dict[str, Callable[[], Run]] = {
        "static": lambda: in_batches(llm, prompts, lengths, None),
        "continuous": lambda: continuous(llm, prompts, lengths),
        "dynamic, arrivals spread": lambda: in_batches(llm, prompts, lengths, 0.5, arguments.gap),
        "continuous, arrivals spread": lambda: continuous(llm, prompts, lengths, arguments.gap),
        "transformers, padded": lambda: hub_padded(hub, prompts, lengths),
        "transformers, continuous": lambda: hub_continuous(hub, prompts, lengths),
    }
    found: dict[str, list[Run]] = {name: [] for name in runs}
    for number in range(arguments.rounds):
        for name, run in runs.items():
            found[name].append(run())
            print(f"round {number + 1}: {name:28} {found[name][-1][0]:6.1f} s {found[name][-1][1]:5} steps", flush=True)
    report(llm, lengths, found, arguments)


def report(llm: LLM, lengths: list[int], found: dict[str, list[Run]], arguments: argparse.Namespace) -> None:
    def ratio(slower: str, faster: str) -> float:
        return statistics.median(a[0] / b[0] for a, b in zip(found[slower], found[faster]))

    results = {"requests": len(lengths), "output_tokens": sum(lengths), "longest": max(lengths), "slots": SLOTS,
               "rounds": arguments.rounds, "gap_s": arguments.gap, "threads": torch.get_num_threads()}
    for name, runs in found.items():
        seconds = statistics.median(run[0] for run in runs)
        same = sum(a == b for a, b in zip(runs[-1][2], found["continuous"][-1][2]))
        results[name] = {"seconds": seconds, "steps": runs[-1][1], "tokens_per_s": sum(lengths) / seconds,
                         "same_answers_as_continuous": same}
        print(f"{name:28} {seconds:6.1f} s   {runs[-1][1]:5} steps   {sum(lengths) / seconds:6.1f} tokens/s   "
              f"{same} of {len(lengths)} answers the same")
    for slower, faster in (("static", "continuous"), ("dynamic, arrivals spread", "continuous, arrivals spread")):
        steps = found[slower][-1][1] / found[faster][-1][1]
        results[f"{slower} / {faster}"] = {"steps": steps, "seconds": ratio(slower, faster)}
        print(f"{slower} / {faster}: {steps:.2f} times the steps, {ratio(slower, faster):.2f} times the time")
    for peer in ("transformers, padded", "transformers, continuous"):
        results[f"{peer} / continuous"] = {"seconds": ratio(peer, "continuous")}
        print(f"{peer} / continuous: {ratio(peer, 'continuous'):.2f} times the time")
    costs = {waiting: line_cost(waiting) for waiting in (10, 10_000)}
    results["scheduler_step_s"] = {str(waiting): seconds for waiting, seconds in costs.items()}
    print(f"a scheduler step with 10 and with 10,000 waiting: {costs[10] * 1e6:.0f} and {costs[10_000] * 1e6:.0f} µs")
    path = record.write("batching", device_name("cpu"), results,
                        {"torch": torch.__version__, "transformers": transformers.__version__})
    print(f"recorded in {path.relative_to(record.RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
