"""The KV cache of lesson 2 on SmolLM2-135M, float32: paging's price, a prefix hit's gain, and what fewer bits cost.

    paged / contiguous   a decode step of 8 rows, 512 tokens cached each, in alternation; median of the rounds' ratios
    prefix hit           TTFT of 1,024 tokens + 32 with prefix caching off, over that with the 1,024 cached
    perplexity           on pydoc_data.topics of CPython, windows of 1,024 tokens read in chunks of 128

The weights are packed, as LLM packs them.

    python benchmarks/kv_cache.py --rounds 9 --windows 4
"""

from __future__ import annotations

import argparse
import math
import statistics
from pydoc_data.topics import topics

import record
import torch
from torch.nn.functional import cross_entropy

from minillm.cache import build
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.measure.hardware import best_device, device_name
from minillm.measure.timing import time_call
from minillm.model import packing, zoo
from minillm.model.batch import make_batch

ROWS, CONTEXT, SHARED, SUFFIX, WINDOW, CHUNK = 8, 512, 1024, 32, 1024, 128


def decode_step(model, cache, tokens: list[int]):
    """A function that decodes one token for ROWS sequences of CONTEXT tokens, and takes it back."""
    for seq in range(ROWS):
        model(make_batch([(seq, tokens[seq : seq + CONTEXT], 0)], model.device), cache)
    batch = make_batch([(seq, [42], CONTEXT) for seq in range(ROWS)], model.device)

    def step() -> None:
        model(batch, cache)
        for seq in range(ROWS):
            cache.truncate(seq, CONTEXT)

    return step


def paging(model, tokens: list[int], rounds: int) -> dict[str, float]:
    specs, device = model.kv_specs(), model.device
    caches = {"contiguous": ContiguousKVCache(specs, ROWS, CONTEXT + 16, model.dtype, device),
              "paged": build.paged_cache(specs, ROWS * (CONTEXT // 16 + 1), 16, dtype=model.dtype, device=device)}
    steps = {name: decode_step(model, cache, tokens) for name, cache in caches.items()}
    times = [{name: time_call(step, device, warmup=1, repeats=1).median for name, step in steps.items()}
             for _ in range(rounds)]
    return {**{f"{name}_s": statistics.median(t[name] for t in times) for name in steps},
            "ratio": statistics.median(t["paged"] / t["contiguous"] for t in times)}


def prefix_hit(loaded: zoo.LoadedModel, tokens: list[int], rounds: int) -> dict[str, float | bool | int]:
    engines = {name: LLM(loaded, max_model_len=2048, max_num_seqs=1, enable_prefix_caching=on)
               for name, on in (("off", False), ("on", True))}
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    engines["on"].generate(tokens[:SHARED] + tokens[-SUFFIX:], params)
    ratios, same, cached, seconds = [], True, set(), {"off": [], "on": []}
    for i in range(rounds):
        start = SHARED + SUFFIX * i
        prompt = tokens[:SHARED] + tokens[start : start + SUFFIX]
        outputs = {name: engine.generate(prompt, params)[0] for name, engine in engines.items()}
        for name, output in outputs.items():
            seconds[name].append(output.times.ttft)
        ratios.append(outputs["off"].times.ttft / outputs["on"].times.ttft)
        same &= outputs["off"].outputs[0].token_ids == outputs["on"].outputs[0].token_ids
        cached.add(outputs["on"].num_cached_tokens)
    return {**{f"ttft_{name}_s": statistics.median(values) for name, values in seconds.items()},
            "ratio": statistics.median(ratios), "same_tokens": same, "cached_tokens": sorted(cached)}


@torch.inference_mode()
def perplexity(model, tokens: list[int], windows: int, kv_dtype: str) -> float:
    total = 0.0
    for window in range(windows):
        text = tokens[window * 9000 :][:WINDOW]
        cache = build.paged_cache(model.kv_specs(), WINDOW // 16, 16, kv_dtype, model.dtype, model.device)
        for start in range(0, WINDOW, CHUNK):
            batch = make_batch([(0, text[start : start + CHUNK], start)], model.device)
            logits = model.head(model.run(model.embed(batch), cache.begin(batch)), list(range(CHUNK)))
            known = torch.tensor(text[start + 1 : start + CHUNK + 1], device=model.device)
            total += cross_entropy(logits[: len(known)].float(), known, reduction="sum").item()
    return math.exp(total / (windows * (WINDOW - 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--windows", type=int, default=4)
    arguments = parser.parse_args()
    device = best_device()
    loaded = zoo.load("smollm2", dtype="float32", device=device)
    packing.pack_where_faster(loaded.model)
    tokens = loaded.tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))
    specs = loaded.model.kv_specs()
    results = {
        "threads": torch.get_num_threads(),
        "decode_step": paging(loaded.model, tokens, arguments.rounds),
        "prefix_hit": prefix_hit(loaded, tokens, arguments.rounds),
        "perplexity": {name: perplexity(loaded.model, tokens, arguments.windows, name) for name in build.KV_DTYPES},
        "bytes_per_token_16_bit_model": {name: build.block_bytes(specs, 16, name, torch.bfloat16) / 16
                                         for name in build.KV_DTYPES},
    }
    for name, value in results.items():
        print(f"{name}: {value}")
    path = record.write("kv_cache", device_name(device), results, {"torch": torch.__version__})
    print(f"recorded in {path.relative_to(record.RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
