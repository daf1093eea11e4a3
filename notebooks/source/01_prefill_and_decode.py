# %% [markdown]
# # 1. Prefill and decode
#
# A chat model answers in two phases. It reads your prompt (**prefill**), then it writes its answer, one token after
# another (**decode**). Both run the same layers over the same weights. **This lesson asks: why is one of them limited by
# arithmetic and the other by memory, and how well can both be predicted before running anything?**
#
# *Assumes:* lesson 0 (tokens, hidden states, attention, the roofline). *Takes:* about 70 minutes of reading and running,
# and as much again or more for the core exercises.
# *You will write:* latency metrics, the cost of a step, sampling, the decode loop, and attention itself.

# %%
import torch

import minillm
from minillm import course
from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding import generate, sampling
from minillm.measure import cost, metrics, plots, timing
from minillm.model import zoo
from minillm.model.batch import make_batch

plots.style()
device = minillm.measure.best_device()
loaded = zoo.load("smollm2", dtype="float32" if device.type == "cpu" else "bfloat16", device=device)
model, tokenizer, shape = loaded.model, loaded.tokenizer, loaded.config.shape()
specs, dtype = model.kv_specs(), str(model.dtype).removeprefix("torch.")
width = model.dtype.itemsize  # bytes per parameter and per cached value
print(loaded.name, f"{shape.params:,} parameters")

# %% [markdown]
# ## What one step computes
#
# A forward pass takes a **batch** of rows. Each row brings some new tokens of one sequence. Rows need not be equally
# long: they are laid end to end, and nothing is padded. A prefill is a row with many new tokens; a decode step is a row
# with one. The model does not know the difference.

# %%
text = "The quick brown fox jumps over the lazy dog"
ids = tokenizer.encode(text)
mixed = make_batch([(0, ids, 0), (1, [42], 17)])  # a prefill, and the 18th token of another sequence
print("new tokens of each row:      ", mixed.query_lens)
print("tokens each row can see:     ", mixed.context_lens)
print("positions:                   ", mixed.positions.tolist())
print("tokens whose logits we want: ", mixed.logit_rows)

# %% [markdown]
# Only attention looks at other tokens. In a prefill it compares each token's query with the keys of all earlier ones, a
# triangle of pairs. In a decode step there is one query, so one row of that triangle.
# The keys and values of earlier tokens do not change, since no token sees a later one. So they are computed once and kept:
# that store is the **KV cache**. Here are the weights of one head
# over our sentence: what each token looks at.

# %%
from minillm.model import layers

with torch.inference_mode():
    batch = make_batch([(0, ids, 0)], device)
    step = NoCache(specs).begin(batch)
    block = model.layers[5]
    normed = block.input_layernorm(model.run(model.embed(batch), step, last_layer=5))
    cos, sin = layers.rope_tables(model.frequencies.to(device), batch.positions, normed.dtype)
    q = layers.apply_rope(block.self_attn.q_proj(normed).view(len(ids), shape.heads, -1), cos, sin)
    k = layers.apply_rope(block.self_attn.k_proj(normed).view(len(ids), shape.kv_heads, -1), cos, sin)
    scores = q[:, 0] @ k[:, 0].T * loaded.config.scale  # [T, T], head 0
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, float("-inf")).softmax(-1)
print("each row sums to 1:", bool(torch.allclose(weights.sum(-1), torch.ones_like(weights[0]), atol=1e-2)))
print("nothing looks ahead:", bool((weights[later] == 0).all()))

# %%
words = [tokenizer.decode([i]).strip() for i in ids]
fig, axes = plots.figure("A decode step computes only the last row of this triangle", "key: the token looked at",
                         "query: the token looking")
axes.imshow(weights.float().cpu(), cmap="Greys")
axes.set_xticks(range(len(words)), words, rotation=45, ha="right", fontsize=10)
axes.set_yticks(range(len(words)), words, fontsize=10)
axes.axhline(len(words) - 1.5, color="#b5432a", linewidth=2)
axes.grid(visible=False)

# %% [markdown]
# *Exercise 1.5* is this computation: `causal_attention`. *Further:* 1.6 does it for a ragged batch, 1.7 is the rotation,
# and 1.8 is a bug hunt in an attention that passes its author's tests.
#
# ## From logits to a token
#
# The head gives a score for each of 49,152 tokens. **Greedy** decoding takes the best. **Sampling** draws one, in
# proportion to its probability, after the unlikely ones are cut off: **top-p** keeps the fewest tokens whose
# probabilities add up to p. How many that is depends on how sure the model is.

# %%
prompts = ["The capital of France is", "My favourite thing is"]
with torch.inference_mode():
    rows = [(i, tokenizer.encode(p), 0) for i, p in enumerate(prompts)]
    logits = model(make_batch(rows, device), NoCache(specs)).float()  # [2, 49152]
kept = torch.isfinite(sampling.top_p_filter(logits, 0.9)).sum(-1).tolist()
for prompt, token, count in zip(prompts, sampling.greedy(logits).tolist(), kept):
    print(f"{prompt!r}: greedy {tokenizer.decode([token])!r}; top-p 0.9 keeps {'under' if count < 100 else 'over'} 100")

# %%
fig, axes = plots.figure("Top-p cuts early where the model is sure, late where it is not",
                         "tokens, most likely first (logarithmic)", "probability so far", log="x")
for look, prompt, row in zip(plots.LOOKS, prompts, logits):
    running = row.softmax(-1).sort(descending=True).values.cumsum(0)[:4096].cpu()
    axes.plot(range(1, len(running) + 1), running, color=look.color, linestyle=look.line, label=repr(prompt))
axes.axhline(0.9, color="#777777", linestyle=":", label="p = 0.9")
legend = axes.legend(loc="lower right")

# %% [markdown]
# *Exercise 1.3:* `greedy` and `top_p_filter`.
#
# ## Two numbers, not one
#
# A user feels two things. **TTFT**, the time to first token: waiting for anything to appear, which is the prefill. And
# **TPOT**, the time per output token afterwards: the reading speed, which is the decode. "Tokens per second" over the
# whole request mixes the two, and the mixture depends on how long prompt and answer happen to be.
#
# Let us take timestamps: one when the request arrives, one for each token.

# %% tags=["nbval-ignore-output"]
import time

long_prompt = tokenizer.encode("The history of computing is longer than the history of computers. " * 40)[:384]


def run(prompt: list[int], tokens: int) -> tuple[float, list[float]]:
    """Arrival and token times of one greedy request."""
    cache = ContiguousKVCache(specs, 1, len(prompt) + tokens, model.dtype, device)
    arrival = time.perf_counter()
    stream = generate.cached_tokens(model, cache, prompt, lambda x: int(sampling.greedy(x)[0]), tokens, ())
    return arrival, [time.perf_counter() for _ in stream]


run(long_prompt, 2)  # warm up
arrival, token_times = run(long_prompt, 24)
ttft, tpot, itls = metrics.request_metrics(arrival, token_times)
print(f"{minillm.measure.hardware.device_name(device)}: TTFT {ttft * 1e3:.0f} ms, TPOT {tpot * 1e3:.1f} ms")
assert len(itls) == 23

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"The first token takes as long as {ttft / tpot:.0f} later ones",
                         "milliseconds since arrival", "")
axes.barh(["request"], [ttft * 1e3], color="#1b1f3b", label=f"prefill: {len(long_prompt)} tokens at once")
left = ttft * 1e3
for i, gap in enumerate(itls):
    axes.barh(["request"], [gap * 1e3], left=left, color="#e0a030", edgecolor="white",
              label="decode: one token each" if i == 0 else None)
    left += gap * 1e3
axes.annotate("first token: TTFT", (ttft * 1e3, 0.4), xytext=(ttft * 1e3, 0.75), arrowprops={"arrowstyle": "->"})
axes.set_ylim(-0.8, 1.1)
axes.legend(loc="lower center", ncols=2)
assert left > ttft * 1e3

# %% [markdown]
# A third, **ITL** (inter-token latency), is each single gap between tokens. Its tail is what stutters. And beware of
# means. Say one user gets 2 tokens a second apart, and another 100 tokens at 20 ms. Per request, the mean TPOT is about
# half a second; per token, the mean gap is 30 ms. Both are right, and they answer different questions.

# %%
slow = metrics.RequestTimes(0.0, [1.0, 2.0])
fast = metrics.RequestTimes(0.0, [1.0 + 0.02 * i for i in range(100)])
summary = metrics.summarize([slow, fast])
print(f"mean of per-request TPOT: {summary.tpot.mean * 1e3:.0f} ms")
print(f"mean of all gaps (ITL):   {summary.itl.mean * 1e3:.0f} ms, median {summary.itl.p50 * 1e3:.0f} ms")

# %% [markdown]
# *Exercise 1.1:* `request_metrics`, from timestamps, with the case of a single token.
#
# ## Prefill and decode on one roofline
#
# A matrix of N by K weights, applied to M tokens, does 2·M·N·K FLOP and reads the weights once, whatever M is. So its
# **arithmetic intensity grows with the tokens in flight**: M FLOP per byte in 16 bits, M/2 in float32. A decode step of
# one request has M = 1. A prefill of 512 tokens has M = 512. That is the whole difference between the two.
#
# Attention does not follow this rule: each row reads its own K and V, so rows in a batch share nothing there. That is why
# 32 rows below reach less than 16 FLOP per byte.
#
# Count a step's FLOPs and bytes by hand once (*exercise 1.2*, `step_totals`), and both phases can be predicted.

# %%
for name, new, context in (("prefill 512", [512], [512]), ("decode, 1 row", [1], [512]),
                           ("decode, 32 rows", [1] * 32, [512] * 32)):
    flops, moved = cost.step_totals(shape, new, context, weight_bytes=4, kv_bytes=4)
    print(f"{name:16} {flops / 1e9:8.2f} GFLOP {moved / 1e6:7.0f} MB   {flops / moved:6.1f} FLOP per byte")

# %% [markdown]
# Does a real matrix product behave so? Take matrices of one layer's MLP, enough of them that no cache holds them all, and
# multiply them with 1 to 512 tokens. The prediction is the roofline of this machine, measured in lesson 0.

# %% tags=["nbval-ignore-output"]
machine = minillm.measure.hardware.measure_machine(device)
n_in, n_out = 576, 1536
matrices = [torch.randn(n_out, n_in, device=device, dtype=model.dtype) for _ in range(60)]
tokens = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
measured, predicted = [], []
for m in tokens:
    x = torch.randn(m, n_in, device=device, dtype=model.dtype)
    t = timing.time_call(lambda x=x: [x @ w.T for w in matrices], device, warmup=1, repeats=3)
    part = cost.linear_cost(m, n_in, n_out, width, width)
    measured.append(part.flops * len(matrices) / t.median / 1e9)
    predicted.append(part.flops / cost.predict(part.flops, part.bytes, machine, dtype).seconds / 1e9)
best, measured_one_token = max(measured), measured[0] * 1e9
print(f"{machine.name}, {dtype}: {measured[0]:.1f} GFLOP/s with 1 token, at best {best:.0f}")
assert len(measured) == len(tokens)

# %% tags=["nbval-ignore-output"]
at_once = 16 * measured[0] / measured[tokens.index(16)]
fig, axes = plots.figure(f"16 tokens at once take {at_once:.1f} times as long as one token, not 16 times",
                         "tokens in flight (M)", "GFLOP/s", log="xy")
plots.predicted_and_measured(axes, tokens, predicted, measured)
assert at_once > 0

# %% [markdown]
# The bend is the **knee**. Left of it the weights' bytes are most of the cost, and another token rides along for a
# fraction of what it would cost alone: this is why **batching** requests pays (lesson 3), and why guessing several tokens
# and checking them at once can pay (lesson 6). Right of it, every token costs its arithmetic. The roofline has a sharp
# corner; a real product bends over a decade, since its kernels are tuned for tall matrices or for single vectors, and
# those in between get the worse of both.
#
# ## TTFT against the length of the prompt
#
# Prefill is the right side: its time grows with the prompt's length, and beyond that with its square, since attention
# compares pairs. Your guess first: how many seconds does a prompt of 512 tokens take here?

# %%
guess = course.guess("1.ttft512", None)  # put your number, in seconds, in place of None

# %% tags=["nbval-ignore-output"]
lengths = [16, 64, 128, 256, 512, 768] if device.type == "cpu" else [128, 512, 1024, 2048, 4096, 8192]
stock = torch.randint(len(tokenizer), (max(lengths),), generator=torch.Generator().manual_seed(0)).tolist()
ttfts, promised = [], []
for n in lengths:
    batch = make_batch([(0, stock[:n], 0)], device)
    t = timing.time_call(lambda batch=batch: model(batch, NoCache(specs)), device, warmup=1, repeats=3)
    ttfts.append(t.median)
    promised.append(cost.predict_step(shape, [n], [n], machine, dtype, width, width).seconds)
ratio = ttfts[-1] / promised[-1]
print(f"{machine.name}: {ttfts[-1]:.2f} s for {lengths[-1]} tokens, predicted {promised[-1]:.2f} s: {ratio:.2f} times")
assert len(ttfts) == len(lengths)

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"Reading {lengths[-1]} tokens takes {ratio:.1f} times what the roofline promises",
                         "prompt length (tokens)", "TTFT (s)")
plots.predicted_and_measured(axes, lengths, promised, ttfts, None if guess is None else (512, guess))
assert ratio > 0

# %% [markdown]
# **Why the ratio is not 1.** The peak was measured on large square matrices; this model's are small and thin, and reach
# less. The operations between the products (norms, rotation, the activation) do almost no arithmetic but move the hidden
# states through memory, and the roofline's FLOPs leave them out. For short prompts the weights' bytes are the floor: 16
# tokens take far longer than a quarter of what 64 take. Where the ratio is below 1, the peak was measured while something
# else kept this machine busy: `minillm measure --refresh`.
#
# ## TPOT against the context
#
# Decode is the left side. Each step reads all weights, plus the K and V of every earlier token of its sequence. For this
# model a cached token is 2·30·3·64 values, 45 KiB in float32, while the weights are 538 MB. So TPOT should be nearly flat
# for short contexts, then rise: at 12,000 cached tokens, K and V would weigh as much as the model.

# %%
guess = course.guess("1.tpot4096", None)  # milliseconds per token, with 4,096 tokens cached

# %% tags=["nbval-ignore-output"]
contexts = [16, 512, 1024, 2048, 4096, 8000]
cache = ContiguousKVCache(specs, 1, 8192, model.dtype, device)
for tensor in (*cache.k, *cache.v):
    tensor.fill_(0.01)  # the time to read K and V does not depend on what they are
tpots, promised = [], []
for n in contexts:
    cache.begin(make_batch([(0, [0] * n, 0)]))  # as if n tokens had been written

    def decode_step(n: int = n) -> None:
        model(make_batch([(0, [42], n)], device), cache)
        cache.truncate(0, n)

    tpots.append(timing.time_call(decode_step, device, warmup=2, repeats=7).median * 1e3)
    promised.append(cost.predict_step(shape, [1], [n + 1], machine, dtype, width, width).seconds * 1e3)
    cache.free(0)
print(f"{machine.name}: TPOT {tpots[0]:.1f} ms at {contexts[0]} cached tokens, {tpots[-1]:.1f} ms at {contexts[-1]}")
assert len(tpots) == len(contexts)

# %% tags=["nbval-ignore-output"]
rise = tpots[-1] / tpots[0]
fig, axes = plots.figure(f"With {contexts[-1]} cached tokens TPOT is {rise:.1f} times as long as with {contexts[0]}",
                         "tokens in the cache", "TPOT (ms)")
plots.predicted_and_measured(axes, contexts, promised, tpots, None if guess is None else (4096, guess))
axes.set_ylim(bottom=0)
assert rise > 0

# %% [markdown]
# ## With and without a cache
#
# Both phases relied on keeping K and V. What if we did not? The **naive** loop runs the whole text through the model for
# each new token. To write n tokens after a prompt of p, it processes p + (p+1) + … tokens: about n·p + n²/2. The
# **cached** loop processes p + n - 1, for the last token is never run. Counting is exact, and the same on every machine:

# %%
p = 32
for n in (16, 64, 256):
    naive = sum(p + i for i in range(n))
    print(f"{n:4} tokens after {p}: naive {naive:6} token passes, cached {p + n - 1:4}: {naive / (p + n - 1):6.1f} times")

# %% tags=["nbval-ignore-output"]
prompt, count = stock[:p], 40


def seconds(loop, cache) -> list[float]:
    """Seconds from the start to each token."""
    begin = time.perf_counter()
    choose = lambda logits: int(sampling.greedy(logits)[0])  # noqa: E731
    return [time.perf_counter() - begin for _ in loop(model, cache, prompt, choose, count, ())]


naive = seconds(generate.naive_tokens, NoCache(specs))
cached = seconds(generate.cached_tokens, ContiguousKVCache(specs, 1, p + count, model.dtype, device))
print(f"{machine.name}: {count} tokens in {naive[-1]:.2f} s without a cache, {cached[-1]:.2f} s with one")
assert len(naive) == len(cached) == count

# %% tags=["nbval-ignore-output"]
from itertools import accumulate

steps = range(p, p + count)
promised_naive = list(accumulate(
    cost.predict_step(shape, [n], [n], machine, dtype, width, width).seconds for n in steps))
promised_cached = list(accumulate(
    cost.predict_step(shape, [n if n == p else 1], [n], machine, dtype, width, width).seconds for n in steps))
print(f"{machine.name}: predicted {promised_naive[-1]:.2f} s and {promised_cached[-1]:.2f} s")
assert promised_naive[-1] > promised_cached[-1]

# %% tags=["nbval-ignore-output"]
gain = naive[-1] / cached[-1]
fig, axes = plots.figure(f"After {count} tokens the cache has made it {gain:.1f} times as fast, and the gap still grows",
                         "tokens generated", "seconds")
axes.plot(range(1, count + 1), naive, **{**plots.MEASURED, "marker": ""}, label="naive: recompute everything")
axes.plot(range(1, count + 1), cached, color="#b5432a", linewidth=2, label="cached: one token a step")
axes.plot(range(1, count + 1), promised_naive, **plots.PREDICTED, label="predicted, naive and cached")
axes.plot(range(1, count + 1), promised_cached, **plots.PREDICTED)
axes.legend()
assert gain > 0

# %% [markdown]
# ## Where the prediction fails on this machine
#
# A decode step takes longer than its bytes. Three suspects, each with an experiment.
#
# **The processor's cache**, a small and fast memory inside it (it has nothing to do with the KV cache). The prediction uses the bandwidth of memory. A matrix that is still in a cache is read faster,
# one that is not is read at memory's speed. Read the same number of bytes out of working sets of growing size:

# %% tags=["nbval-ignore-output"]
sizes = [2**n for n in range(1, 10)]  # MB
rates = []
for mb in sizes:
    matrix = torch.ones(mb * 2**20 // 4 // 1024, 1024, device=device)  # float32
    vector = torch.ones(1024, device=device)
    loops = max(1, 256 // mb)
    t = timing.time_call(lambda m=matrix, v=vector, n=loops: [m @ v for _ in range(n)], device, warmup=1, repeats=3)
    rates.append(loops * matrix.nbytes / t.median / 1e9)
weights_mb = width * shape.params / 1e6
print(f"{machine.name}: {max(rates):.0f} GB/s out of a cache, {rates[-1]:.0f} GB/s out of {sizes[-1]} MB")
assert len(rates) == len(sizes)

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"A small working set is read {max(rates) / rates[-1]:.1f} times as fast as a large one",
                         "working set (MB)", "GB/s read", log="x")
axes.plot(sizes, rates, **plots.MEASURED, label="measured")
axes.axhline(machine.read_bandwidth / 1e9, **plots.PREDICTED, label="what the prediction used")
axes.axvline(weights_mb, color="#b5432a", linestyle=":", label="this model's weights")
axes.set_ylim(bottom=0)
axes.legend()
assert weights_mb > 0

# %% [markdown]
# **Threads.** A prefill is limited by arithmetic, and each core brings its own. A decode is limited by bandwidth, which
# all cores share; and a product with one token is little work to split. What do the other cores bring to each?

# %% tags=["nbval-ignore-output"]
threads = torch.get_num_threads()
prefill = make_batch([(0, stock[:128], 0)], device)
cache.begin(make_batch([(0, [0] * 16, 0)]))
speedups = {}
for name, call in (("prefill of 128", lambda: model(prefill, NoCache(specs))), ("decode", lambda: decode_step(16))):
    both = timing.time_call(call, device, warmup=1, repeats=3).median
    torch.set_num_threads(1)
    speedups[name] = timing.time_call(call, device, warmup=1, repeats=3).median / both
    torch.set_num_threads(threads)
print(f"{machine.name}, {threads} threads against 1: " + ", ".join(f"{n} {v:.2f} times" for n, v in speedups.items()))
assert torch.get_num_threads() == threads

# %% [markdown]
# A decode that gains from a second core says that one core alone cannot ask for bytes fast enough: the memory could
# deliver more than it was asked for. Where decode gains less than prefill, the shared memory is the limit.
#
# **Dispatch.** Python and torch need some time to start each operation of a step, however small it is. Count the
# operations of one decode step, and time one that does nothing worth mentioning.

# %% tags=["nbval-ignore-output"]
from torch.utils._python_dispatch import TorchDispatchMode


class CountOperations(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        CountOperations.calls += 1
        return operation(*args, **(kwargs or {}))


with CountOperations():
    decode_step(16)
calls = CountOperations.calls
small = torch.ones(1, device=device)
dispatch = timing.time_call(lambda: [small + small for _ in range(1000)], device, repeats=5).median / 1000
print(f"{machine.name}: {calls} operations a step, {dispatch * 1e6:.1f} us to start one; TPOT {tpots[0]:.1f} ms")
assert calls > 30 * 7

# %% tags=["nbval-ignore-output"]
reading = 1e3 * width * shape.params / machine.bandwidth
slower = 1e3 * shape.params / (measured_one_token / 2)  # 2 FLOP a weight, at the rate that one token reached above
others = calls - (7 * shape.layers + 1)  # operations besides the matrix products, whose rate includes their start
budget = {"read the weights, at full bandwidth": reading,
          "products that read more slowly": max(0.0, slower - reading),
          "start the other operations": 1e3 * dispatch * others}
budget["attention, norms and the rest"] = max(0.0, tpots[0] - sum(budget.values()))
fig, axes = plots.figure(f"Reading at full bandwidth would take {reading:.0f} of the step's {tpots[0]:.0f} ms",
                         "milliseconds of one decode step", "")
plots.bars(axes, ["one step"], {name: [value] for name, value in budget.items()})
axes.set_ylim(1.6, -0.5)
axes.legend(loc="lower left", fontsize=10)
assert budget["start the other operations"] > 0

# %% [markdown]
# So most of the gap is in the products themselves. A layer's matrices are 0.4 to 3.5 MB, and torch splits each over the
# threads, reads it, and waits for all to end before the next: with one token it reached the rate at the left end of the
# knee's figure, not the bandwidth of one long read. The rest is attention, the norms, and starting some two
# thousand operations. Fusing operations, or a batch that shares each read, gets some of it back: both are in later
# lessons.

# %% [markdown]
# On a GPU the same gap is wider: starting a **kernel** (a program that runs on the GPU) takes about as long as on a CPU, but the reading is a hundred times
# faster. The authors of gpt-fast report 25.5 tokens per second for a 7B Llama on an A100 in eager mode and 107
# compiled, in the same 16 bits: most of the difference is dispatch. (PyTorch blog, 2023.)
#
# ## On a big GPU
#
# No GPU has run this lesson yet, so these are predictions from datasheets, not measurements:

# %%
from minillm.measure.hardware import DATASHEETS
from minillm.measure.plan import plan
from minillm.measure.shape import KNOWN_SHAPES

for name in ("rtx4090", "a100", "h200"):
    p = plan(KNOWN_SHAPES["llama-3-8b"], DATASHEETS[name], context=2048)
    print(f"{p.hardware:22} TTFT {p.prefill.seconds * 1e3:6.1f} ms ({p.prefill.bound})   "
          f"TPOT {p.decode.seconds * 1e3:5.2f} ms ({p.decode.bound})   {p.tokens_per_second:5.0f} tokens/s at most")

# %% [markdown]
# ## Exercises and further reading
#
# | exercise | minutes | section |
# |---|---|---|
# | 1.1 TTFT, TPOT and ITL from timestamps | 10 | Two numbers, not one |
# | 1.2 FLOPs and bytes of a step | 20 | Prefill and decode on one roofline |
# | 1.3 Greedy and top-p sampling | 20 | From logits to a token |
# | 1.4 The cached decode loop | 25 | With and without a cache |
# | 1.5 Causal attention of one sequence | 25 | What one step computes |
# | *Further:* 1.6 ragged attention, 1.7 rotary positions, 1.8 a bug hunt | 15, 15, 20 | What one step computes |
#
# **Further reading:** *Efficiently Scaling Transformer Inference* (Pope et al., 2022); *The Curious Case of Neural Text
# Degeneration* (Holtzman et al., 2020), for top-p; *Fast Transformer Decoding* (Shazeer, 2019), for why decode is bound by
# memory; *Accelerating Generative AI with PyTorch II: GPT, Fast* (PyTorch blog, 2023).
