"""Prefill and decode of SmolLM2-135M, float32, greedy, one prompt: minillm and transformers in alternation.

Both read the same GGUF file and run in the same process on the same threads. A round measures each once, in turn; the
figures are medians over rounds, and the ratio is the median of the rounds' ratios.

    python benchmarks/against_transformers.py --rounds 7
"""

from __future__ import annotations

import argparse
import statistics
import time

import record
import torch
import transformers

from minillm.cache.contiguous import ContiguousKVCache
from minillm.measure.hardware import device_name
from minillm.model import packing, zoo
from minillm.model.batch import make_batch


def ours(model, prompt: list[int], tokens: int) -> tuple[float, float, list[int]]:
    """(TTFT in s, decode tokens per second, token ids) of our cached loop."""
    cache = ContiguousKVCache(model.kv_specs(), 1, len(prompt) + tokens)
    begin = time.perf_counter()
    pending, start, out = prompt, 0, []
    for i in range(tokens):
        logits = model(make_batch([(0, pending, start)]), cache)
        start += len(pending)
        pending = [int(logits[0].argmax())]
        out += pending
        if i == 0:
            first = time.perf_counter()
    return first - begin, (tokens - 1) / (time.perf_counter() - first), out


class FirstTokenClock(transformers.generation.streamers.BaseStreamer):
    """Notes when generate hands over its first new token; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def theirs(model, prompt: list[int], tokens: int) -> tuple[float, float, list[int]]:
    """The same of transformers' generate."""
    ids, clock = torch.tensor([prompt]), FirstTokenClock()
    begin = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                         do_sample=False, streamer=clock)
    first = clock.times[1]
    return first - begin, (tokens - 1) / (clock.times[-1] - first), out[0, len(prompt):].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512, help="prompt length in tokens")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    arguments = parser.parse_args()

    loaded = zoo.load("smollm2", dtype="float32", device="cpu")
    packing.pack_where_faster(loaded.model)  # as LLM does with what it loads
    hub = transformers.AutoModelForCausalLM.from_pretrained(
        loaded.path.parent, gguf_file=loaded.path.name, dtype=torch.float32).eval()
    text = "The history of computing is longer than the history of computers. " * 60
    prompt = loaded.tokenizer.encode(text)[: arguments.prompt]

    rounds: dict[str, list[tuple[float, float]]] = {"minillm": [], "transformers": []}
    same = True
    for warm_up in [True] + [False] * arguments.rounds:
        ttft, rate, tokens = ours(loaded.model, prompt, arguments.tokens)
        hub_ttft, hub_rate, hub_tokens = theirs(hub, prompt, arguments.tokens)
        same &= tokens == hub_tokens
        if not warm_up:
            rounds["minillm"].append((ttft, rate))
            rounds["transformers"].append((hub_ttft, hub_rate))
    pairs = list(zip(rounds["minillm"], rounds["transformers"]))
    results = {
        "prompt_tokens": len(prompt), "new_tokens": arguments.tokens, "rounds": arguments.rounds,
        "threads": torch.get_num_threads(), "same_tokens": same,
        **{name: {"ttft_s": statistics.median(t for t, _ in runs), "decode_tokens_per_s":
                  statistics.median(r for _, r in runs)} for name, runs in rounds.items()},
        "ttft_ratio": statistics.median(b[0] / a[0] for a, b in pairs),
        "decode_ratio": statistics.median(a[1] / b[1] for a, b in pairs),
    }
    for name in rounds:
        print(f"{name:13} TTFT {results[name]['ttft_s']:.3f} s   decode "
              f"{results[name]['decode_tokens_per_s']:.1f} tok/s")
    print(f"minillm / transformers: prefill {results['ttft_ratio']:.2f} x, decode {results['decode_ratio']:.2f} x "
          f"as fast; same tokens: {same}")
    path = record.write("against_transformers", device_name("cpu"), results,
                        {"torch": torch.__version__, "transformers": transformers.__version__})
    print(f"recorded in {path.relative_to(record.RESULTS.parent.parent)}")


if __name__ == "__main__":
    main()
