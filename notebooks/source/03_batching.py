# %% [markdown]
# # 3. Static, dynamic and continuous batching
#
# A decode step reads every weight to make one token. The same reading could serve sixteen users. But users come at
# different times and want answers of different lengths. **This lesson asks: how is a machine kept busy by people who do
# not wait for one another, and what does each of them feel of the others?**
#
# *Assumes:* lessons 1 and 2 (prefill, decode, TTFT, blocks, prefix hits). *Takes:* about 70 minutes of reading and
# running, and an hour for the core exercises.
# *You will write:* slot efficiency, the dynamic batcher, the division of a step among requests, and the step of
# continuous batching.

# %%
import time

import minillm
from minillm import course
from minillm.cache.blocks import BlockPool
from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.tables import BlockTables
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.measure import cost, metrics, plots, timing, workload
from minillm.measure.workload import Lengths
from minillm.model.batch import make_batch
from minillm.serving import batching, simulator, step_times
from minillm.serving.replay import replay
from minillm.serving.scheduler import Scheduler, SchedulerConfig, Sequence

plots.style()
device = minillm.measure.best_device()
llm = LLM("smollm2", max_num_seqs=16, max_num_batched_tokens=256, max_model_len=2048, device=device)
model, specs, shape = llm.model, llm.model.kv_specs(), llm.config.shape()
dtype, width = str(model.dtype).removeprefix("torch."), model.dtype.itemsize  # bytes per parameter and cached value
here = minillm.measure.hardware.device_name(device)
text = llm.tokenizer.encode("The history of computing is longer than the history of computers. " * 100)

# %% [markdown]
# ## Sharing the weights
#
# Lesson 1 found decode bound by the weights that each step reads. A step of 16 rows reads them once for 16 tokens. So
# throughput should grow with the batch, until arithmetic takes as long as reading. Your guess: how many times as many
# tokens a second do 16 rows make here, compared with one?

# %%
guess = course.guess("3.gain16", None)  # times

# %% tags=["nbval-ignore-output"]
machine = minillm.measure.hardware.measure_machine(device)
sizes, context = [1, 2, 4, 8, 16, 32], 64
cache = ContiguousKVCache(specs, max(sizes), 96, model.dtype, device)
for seq in range(max(sizes)):
    model(make_batch([(seq, text[:context], 0)], device), cache)


def decode(rows: int) -> None:
    model(make_batch([(seq, [42], context) for seq in range(rows)], device), cache)
    for seq in range(rows):
        cache.truncate(seq, context)


timed = timing.alternate({n: lambda n=n: decode(n) for n in sizes}, rounds=3, device=device)
seconds = {n: timed[n].median for n in sizes}
roof = {n: cost.predict_step(shape, [1] * n, [context + 1] * n, machine, dtype, width, width).seconds for n in sizes}
gain = 16 * seconds[1] / seconds[16]
print(f"{here}: a step takes {seconds[1] * 1e3:.0f} ms with 1 row and {seconds[16] * 1e3:.0f} ms with 16")
assert cache.length(0) == context

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"16 rows make {gain:.1f} times the tokens of one, and each user's come "
                         f"{seconds[16] / seconds[1]:.1f} times as slowly", "rows in the batch",
                         "tokens per second, all rows together", log="xy")
plots.predicted_and_measured(axes, sizes, [n / roof[n] for n in sizes], [n / seconds[n] for n in sizes],
                             None if guess is None else (16, guess / seconds[1]))
assert len(axes.lines) >= 2

# %% [markdown]
# Both halves of the title matter. The machine makes more tokens in all; each user gets theirs later. Everything below is
# a trade between these two.
#
# Why less than 16 times? The roofline's bend shows where arithmetic takes over, and a processor's comes early: its
# arithmetic is weak for its memory. A GPU's comes at hundreds of rows. The distance to the roof is what small matrix
# products and the work between them cost.
#
# ## Static batching: the longest decides
#
# The simplest server waits for 16 requests and runs them together until all have ended. Answers are not equally long.
# Let 64 come with log-normal lengths, median 48, σ 1, at most 256. A batch takes as many steps as its longest answer:

# %%
lengths = workload.lognormal_lengths(64, 48, 1.0, 256, seed=1)
batches = [lengths[i : i + 16] for i in range(0, 64, 16)]
for batch in batches:
    print(f"steps {max(batch):3}, mean length {sum(batch) / 16:5.1f}, rows that do wanted work: "
          f"{batching.slot_efficiency(batch):.0%}")
static_steps = sum(max(batch) for batch in batches)
print("steps in all:", static_steps)

# %% [markdown]
# A **slot** here is a place in the batch (in lesson 2: a place in a block). Once its answer has ended, it is computed until the end of the batch, and the result
# is thrown away. A row-step is one row in one step; the
# useful share of them is Σ lengths / (n · longest). *Exercise 3.1* is this line. It falls
# with the spread of the lengths, and with the size of the batch: among more answers the longest is longer.

# %%
sigmas, spread = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5], {}
for n in (4, 16, 64):
    spread[n] = []
    for sigma in sigmas:
        drawn = workload.lognormal_lengths(200 * n, 48, sigma, 10_000, seed=2)
        shares = [batching.slot_efficiency(drawn[i : i + n]) for i in range(0, len(drawn), n)]
        spread[n].append(sum(shares) / len(shares))
fig, axes = plots.figure("The wider the lengths spread, the less of a static batch is wanted",
                         "σ of the logarithm of the output length", "useful share of the row-steps (%)")
for look, (n, shares) in zip(plots.LOOKS, spread.items()):
    axes.plot(sigmas, [100 * share for share in shares], color=look.color, linestyle=look.line, marker=look.marker,
              label=f"batches of {n}")
axes.set_ylim(0, 103)
legend = axes.legend()

# %% [markdown]
# ## Dynamic batching: how long to wait
#
# Waiting for a *full* batch is hard on whoever comes first. **Dynamic batching** starts when the batch is full or when
# the first in it has waited for a *timeout*. Four places, a timeout of half a second, requests at these moments:

# %%
arrivals, free_at = [0.0, 0.1, 0.2, 2.0, 2.1, 2.2, 2.3, 2.4], 0.0
while arrivals:
    start, size = batching.next_batch(arrivals, free_at, max_size=4, timeout=0.5)
    why = "full" if size == 4 else "the first waited 0.5 s" if start == arrivals[0] + 0.5 else "the machine became free"
    print(f"at {start:.1f} s a batch of {size} starts: {why}")
    arrivals, free_at = arrivals[size:], start + 1.0  # a batch takes a second here

# %% [markdown]
# *Exercise 3.2* is `next_batch`. What is a good timeout? Take steps of 35 ms and 4 ms more for each row, answers as above
# and Poisson arrivals (gaps at random, as from people who know nothing of each other), and count (no model runs; *simulated*):

# %%
def dynamic(rate: float, timeout: float, count: int = 1500) -> tuple[float, float]:
    """(mean seconds from arrival to the end of the answer's batch, tokens for each second that the machine is busy)."""
    arrivals = workload.poisson_arrivals(count, rate, seed=3)
    wanted = workload.lognormal_lengths(count, 48, 1.0, 256, seed=4)
    free_at, done, waited, busy = 0.0, 0, 0.0, 0.0
    while done < count:
        start, size = batching.next_batch(arrivals[done:], free_at, 16, timeout)
        took = max(wanted[done : done + size]) * (0.035 + 0.004 * size)
        free_at, busy = start + took, busy + took
        waited += sum(free_at - arrival for arrival in arrivals[done : done + size])
        done += size
    return waited / count, sum(wanted) / busy


timeouts = [0, 0.5, 1, 2, 4, 8, 16]
swept = {rate: [dynamic(rate, timeout) for timeout in timeouts] for rate in (0.1, 0.4, 1.2)}
for rate, row in swept.items():
    print(f"{rate} a second: mean latency at each timeout " + ", ".join(f"{latency:5.1f}" for latency, _ in row) + " s")

# %%
fig, axes = plots.figure("Waiting buys throughput only while the machine would be idle (simulated)",
                         "tokens per busy second", "mean seconds until an answer is there")
for look, (rate, row) in zip(plots.LOOKS, swept.items()):
    axes.plot([tokens for _, tokens in row], [latency for latency, _ in row], color=look.color, linestyle=look.line,
              marker=look.marker, label=f"{rate} requests a second")
    for end in (0, -1):
        note = axes.annotate(f"{timeouts[end]} s", (row[end][1], row[end][0]), textcoords="offset points", xytext=(6, 4))
legend = axes.legend()

# %% [markdown]
# Each line runs over the same timeouts, 0 to 16 seconds. At a light load waiting fills the batches: more tokens for each
# second of work, paid by everybody's patience. At 1.2 a second more come than can be served, and the timeout
# hardly matters for the tokens: while the machine computes, the next batch gathers by itself. The seconds there are those
# of a line that grows with every request, and say nothing else.
#
# ## Continuous batching: decide anew at every step
#
# Why should a batch have an end? A step knows nothing of the last one: it gets rows, and makes a token for each. So the
# rows can be chosen anew **at every step**. Who has ended leaves at once, who waits takes the slot at once. This is
# **continuous batching**, or iteration-level scheduling (Orca, Yu et al. 2022). With paged memory nothing has to be moved
# for it: a row is a block table. Here is a scheduler with two slots and nothing but integers, no model:

# %%
scheduler = Scheduler(BlockTables(BlockPool(16, block_size=4)), SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8))
for seq_id, (prompt, output) in enumerate([(3, 2), (2, 5), (4, 3)]):
    scheduler.add(Sequence(seq_id, list(range(prompt)), output))
remaining = {0: 2, 1: 5, 2: 3}
while scheduler.has_unfinished:
    plan = scheduler.schedule()
    print("; ".join(f"sequence {row.seq_id}: {len(row.token_ids)} token(s) from position {row.start}" for row in plan.rows))
    for row in plan.rows:
        remaining[row.seq_id] -= 1
    ended = [row.seq_id for row in plan.rows if remaining[row.seq_id] == 0]
    scheduler.update(plan, {row.seq_id: [7] for row in plan.rows}, ended)

# %% [markdown]
# In the third step a prompt of four tokens stands beside a decode. That is one batch for the model (lesson 1: a prefill is
# a row with many tokens). How many steps do the 64 requests take now? The scheduler alone can tell, since steps are counts:

# %%
items = [workload.WorkItem(0.0, 32, length) for length in lengths]
counted = simulator.simulate(items, lambda: Scheduler(BlockTables(BlockPool(2048)), SchedulerConfig(16, 512)),
                             lambda query_lens, context_lens: 1.0)
print(f"static {static_steps} steps, continuous {counted.steps[0]}: static / continuous = {static_steps / counted.steps[0]:.2f}")
print("no schedule of 16 slots can need fewer than", -(-sum(lengths) // 16))
print("at most half of static's steps:", counted.steps[0] <= static_steps / 2)

# %% [markdown]
# Now on the model: a small case, to be seen whole. Twelve requests, four slots, all there at the start.

# %% tags=["nbval-ignore-output"]
small = workload.lognormal_lengths(12, 12, 1.0, 48, seed=5)


def requests(engine: LLM) -> list:
    return [engine.request(text[i : i + 16], SamplingParams(temperature=0, max_tokens=n, ignore_eos=True))
            for i, n in enumerate(small)]


four = LLM(llm.loaded, max_num_seqs=4, max_model_len=256, enable_prefix_caching=False)
timelines, answers = {}, {}
for name in ("static", "continuous"):
    records, asked = [], requests(four)
    if name == "static":
        batching.serve(model, ContiguousKVCache(specs, 4, 96, model.dtype, device), asked, 4, on_step=records.append)
    else:
        four.engine.on_step = records.append
        for request in asked:
            four.engine.add(request)
        while four.engine.has_unfinished:
            four.engine.step()
    timelines[name], answers[name] = records, asked
assert [r.answers[0].token_ids for r in answers["static"]] == [r.answers[0].token_ids for r in answers["continuous"]]

# %% tags=["nbval-ignore-output"]
import matplotlib.pyplot as plt

fig, both = plt.subplots(2, 1, figsize=(6.4, 6.2), sharex=True)
for axes, (name, records) in zip(both, timelines.items()):
    seqs = sorted({seq for record in records for seq, _, _ in record.rows})
    last = {seq: request.answers[0].token_times[-1] for seq, request in zip(seqs, answers[name])}
    took = records[-1].end - records[0].start
    plots.finish(axes, f"{name}: {len(records)} steps, {took:.1f} s", "seconds", "slot")
    plots.slot_timeline(axes, [(r.start, r.end, {seq: n for seq, _, n in r.rows}) for r in records], last)
assert len(timelines["continuous"]) < len(timelines["static"])

# %% [markdown]
# Each stretch of prefill and decode is an answer. In the static batch short answers are followed by work that is thrown
# away; in the continuous one by the next request. It has a tail too: when nobody waits any more, slots stay empty. That is
# why 64 requests took 339 steps and not 259: long answers that were let in late end alone.
#
# On the 64 requests above with 16 slots, continuous batching took 34.9 s and static batching 75.3 s, 2.20 times as long.
# With arrivals a tenth of a second apart dynamic batching took 2.41 times as long as continuous with the same arrivals.
# `generate` of transformers with padded batches took 2.39 times as long as continuous (AMD EPYC, 2 cores; medians of three
# rounds in alternation, a ratio being the median of the ratios of each round; recorded in
# `benchmarks/results/batching_amd-epyc.json`). All gave the same tokens.
#
# *Exercise 3.4* is the step itself, `Scheduler.schedule`. It calls 3.3; ours stands in until yours is written.
#
# ## A long prompt arrives: chunked prefill
#
# Four users read along as their answers come. Then somebody pastes 1,000 tokens. If their prefill is one step, that step
# is long, and four answers stop. **Chunked prefill** gives each step a budget of tokens: decodes take one each, and what
# is left goes to prompts, piece by piece (Sarathi-Serve, Agrawal et al. 2024).
# Guess: how many times its usual pause do the four wait, when the prompt comes in one piece?

# %%
guess = course.guess("3.spike", None)  # times the usual gap between two tokens
budgets = (1024, 256, 64)

# %% tags=["nbval-ignore-output"]
def interrupted(budget: int, long: int = 1000, before: int = 6, after: int = 4) -> dict:
    """Four decode; after some steps a long prompt joins. Times of their tokens, and the TTFT of the newcomer."""
    one = LLM(llm.loaded, max_num_seqs=8, max_num_batched_tokens=budget, max_model_len=2048, enable_prefix_caching=False)
    endless = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    reading = [one.request(text[i : i + 16], endless) for i in range(4)]
    for request in reading:
        one.engine.add(request)
    for _ in range(before):
        one.engine.step()
    joined = time.perf_counter()
    newcomer = one.request((text * 2)[:long], endless)
    one.engine.add(newcomer)
    while len(newcomer.answers[0].token_ids) < after:
        one.engine.step()
    return {"at": [t - joined for t in reading[0].answers[0].token_times],
            "ttft": newcomer.answers[0].token_times[0] - joined, "steps": len(reading[0].answers[0].token_ids)}


seen = {budget: interrupted(budget) for budget in budgets}
gaps = {budget: [b - a for a, b in zip(run["at"], run["at"][1:])] for budget, run in seen.items()}
for budget in budgets:
    print(f"{here}, budget {budget:4}: longest gap {max(gaps[budget]) * 1e3:5.0f} ms, the newcomer's first token after "
          f"{seen[budget]['ttft']:.2f} s")
assert seen[64]["steps"] > seen[256]["steps"] > seen[1024]["steps"]

# %% tags=["nbval-ignore-output"]
usual = sorted(gaps[1024])[len(gaps[1024]) // 2]
spike = max(gaps[1024]) / usual
fig, axes = plots.figure(f"In one piece a prompt of 1,000 tokens makes the others wait {spike:.0f} times as long as usual",
                         "seconds since the long prompt came", "ms since the token before", log="y")
for look, budget in zip(plots.LOOKS, budgets):
    axes.plot(seen[budget]["at"][1:], [1e3 * gap for gap in gaps[budget]], color=look.color, linestyle=look.line,
              marker=look.marker, label=f"budget {budget} tokens a step")
if guess is not None:
    axes.plot([0], [guess * usual * 1e3], **plots.GUESSED, label="your guess")
axes.legend()
assert spike > 0

# %% [markdown]
# The budget is a dial. A small one bounds the gap of those who read. The newcomer pays: its chunks share steps with the
# others, and small pieces use the machine less well. `split_budget` decides who gets how much; it is *exercise 3.3*:

# %%
from minillm.serving.scheduler import split_budget

uncomputed = [1, 1, 1, 1, 1000]  # four decode, one has a prompt of 1,000
for budget in budgets:
    print(f"budget {budget:4}: tokens of each in the next step", split_budget(uncomputed, budget))
print("at most 100 of a prompt:", split_budget(uncomputed, 256, chunk_size=100))

# %% [markdown]
# ## When memory runs out: preemption
#
# Nobody knows how long answers become. Requests are let in when their *prompts* fit; then all of them grow, and at some
# step the pool has no block left. Somebody must go. The scheduler **preempts** the last in the line: its blocks go back,
# and it waits in its old place. Later it returns and computes its K and V again, what it has generated included; or they
# were kept in host memory and are **swapped** in. Either way its text must not change. Eight requests, a pool with room
# for about half of what they will need:

# %%
def crowded(blocks: int, **options):
    one = LLM(llm.loaded, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=512,
              kv_cache_memory_bytes=blocks * per_block, **options)
    records = []
    one.engine.on_step = records.append
    outputs = one.generate([text[9 * i : 9 * i + 24] for i in range(8)],
                           SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    return [output.outputs[0].token_ids for output in outputs], records, one


per_block = llm.cache.bytes // llm.cache.pool.num_blocks
runs = {"room for all": crowded(64), "16 blocks, recompute": crowded(16),
        "16 blocks, swap": crowded(16, swap_space_bytes=64 * per_block)}
for name, (tokens, records, one) in runs.items():
    print(f"{name:21} {len(records):3} steps, {sum(len(r.preempted) for r in records):2} preemptions, "
          f"{sum(r.tokens for r in records):4} tokens computed, same answers: {tokens == runs['room for all'][0]}, "
          f"blocks in use at the end: {one.cache.pool.num_blocks - one.cache.pool.available}")

# %%
records = runs["16 blocks, recompute"][1]
gone = [i for i, record in enumerate(records) if record.preempted]
fig, axes = plots.figure("The pool fills, somebody goes, and the first in line always gets on", "step",
                         "blocks in use, of 16; rows in the step")
axes.step(range(len(records)), [r.held for r in records], where="mid", color=plots.LOOKS[0].color, label="blocks in use")
axes.step(range(len(records)), [len(r.rows) for r in records], where="mid", color=plots.LOOKS[2].color, linestyle="-.",
          label="rows")
axes.plot(gone, [records[i].held for i in gone], color=plots.LOOKS[1].color, linestyle="", marker="v", markersize=10,
          label="somebody was preempted")
axes.set_ylim(0, 21)
legend = axes.legend(loc="upper center", ncols=3, fontsize=9.5)

# %% [markdown]
# Computing again repeats 48 tokens here, swapping none; each mark is a step that preempts two.
#
# Why the last in line, and not the one who holds most? Because then the first never goes, so it ends; then the next is
# first. Every request that fits alone ends (*exercise 3.5*). By size, two that outgrow memory can send each other back for
# ever: that is **livelock**, and real engines had it (vLLM issue 45388). A **watermark** keeps a few blocks free when
# somebody is let in, so that who is running can grow a little first. *Exercise 3.6* is a bug hunt in admission.
#
# ## Latency against throughput
#
# How many requests a second can this machine take? Below a certain rate, TTFT hardly notices. Above it the line
# grows as long as requests come, so TTFT depends on how many come: 16 requests wait less than 200. In between is the **knee**. To draw such curves without hours of waiting, there is
# a simulator: the *same scheduler*, on a clock that a step-time function advances. Let it learn the times of steps from
# one workload, then predict others:

# %% tags=["nbval-ignore-output"]
def measured(items, seed: int = 0):
    steps = []
    llm.engine.on_step = steps.append
    done = replay(items, llm.engine, lambda prompt, item: llm.request(
        prompt, SamplingParams(temperature=0, max_tokens=item.output_tokens, ignore_eos=True)), llm.config.vocab_size, seed)
    return metrics.summarize(done.times), steps


few = workload.make_workload(4, rate=1.0, prompt=Lengths(64, 0.8, 300), output=Lengths(8, 0.5, 24), seed=11)
many = workload.make_workload(24, prompt=Lengths(64, 0.8, 300), output=Lengths(12, 0.8, 48), seed=10)
steps = [step for items in (few, many) for step in measured(items, seed=9)[1]]
fitted = step_times.fit_times([([n for _, _, n in s.rows], [at + n for _, at, n in s.rows], s.seconds) for s in steps])
print(f"{here}: {fitted}")
assert fitted.records == len(steps)

# %% tags=["nbval-ignore-output"]
def predicted(rate: float, count: int, times=fitted, config=llm.engine.scheduler.config,
              blocks: int = llm.cache.pool.num_blocks, **lengths):
    items = workload.make_workload(count, rate=rate, seed=1, **lengths)
    run = simulator.simulate(items, lambda: Scheduler(BlockTables(BlockPool(blocks)), config), times)
    return metrics.summarize(run.requests)


mix = {"prompt": Lengths(64, 0.8, 300), "output": Lengths(12, 0.8, 48)}
rates = [0.25, 0.5, 1, 2, 3, 4, 5, 6, 8, 12]
curve = [predicted(rate, 200, **mix) for rate in rates]
points = {rate: measured(workload.make_workload(16, rate=rate, seed=1, **mix), seed=rate)[0] for rate in (2, 6)}
same = {rate: predicted(rate, 16, **mix) for rate in points}
for rate, found in points.items():
    print(f"{rate} a second, 16 requests: tokens/s {same[rate].output_tokens_per_second:.1f} simulated, "
          f"{found.output_tokens_per_second:.1f} measured; median TTFT {same[rate].ttft.p50 * 1e3:.0f} ms simulated, "
          f"{found.ttft.p50 * 1e3:.0f} ms measured")
assert len(curve) == len(rates)

# %% tags=["nbval-ignore-output"]
knee = max(rate for rate, one in zip(rates, curve) if one.ttft.p95 <= 2 * curve[0].ttft.p95)
fig, axes = plots.figure(f"Up to {knee:g} requests a second the 95th percentile of TTFT at most doubles (simulated)",
                         "output tokens per second", "95th percentile of TTFT (s)", log="y")
axes.plot([one.output_tokens_per_second for one in curve], [one.ttft.p95 for one in curve], **plots.PREDICTED,
          label="simulated, 200 requests")
for kind, fill, runs_of in (("simulated", "none", same), ("measured", plots.LOOKS[1].color, points)):
    axes.plot([one.output_tokens_per_second for one in runs_of.values()], [one.ttft.p95 for one in runs_of.values()],
              color=plots.LOOKS[1].color, linestyle="", marker="s", fillstyle="full", markerfacecolor=fill,
              label=f"{kind}, 16 requests at 2/s and 6/s")
axes.legend()
for place, (rate, one) in enumerate(zip(rates, curve)):
    if place % 3 == 0:
        axes.annotate(f"{rate:g}/s", (one.output_tokens_per_second, one.ttft.p95), textcoords="offset points",
                      xytext=(-10, 8))
assert len(points) == 2

# %% [markdown]
# Is the simulator to be trusted? A longer test ran other workloads than those it was fitted to (recorded in
# `benchmarks/results/simulator_amd-epyc.json`; 40 to 60 requests each, two rounds, medians of how far *simulated* was off):
#
# | workload | tokens/s | TTFT p50 | TTFT p95 | TTFT p99 |
# |---|---|---|---|---|
# | Poisson, 1 a second | +0.4 % | -2.1 % | +1.0 % | +1.0 % |
# | Poisson, 2 a second: at its knee | -2.0 % | +5.0 % | +7.2 % | +10.5 % |
# | Poisson, 8 a second: far above it | -0.3 % | +0.2 % | +0.3 % | +0.2 % |
# | bursts, 1.5 a second | +2.2 % | -8.9 % | -5.3 % | -5.4 % |
# | conversations of 3 turns, shared prefixes | -0.4 % | -1.8 % | +0.1 % | +4.0 % |
#
# The largest error of a single run was 13.8 %, at the knee (these answers are longer than ours above, so it comes earlier).
# There a machine that gets 2 % slower makes the line of those who wait much longer, which is why the step times were
# fitted anew before and after each run.
#
# ## Where it loses
#
# Answers of equal length, all there at once: there is nothing to gain, and static batching needs no scheduler.

# %%
equal = [workload.WorkItem(0.0, 32, 48)] * 64
alike = simulator.simulate(equal, lambda: Scheduler(BlockTables(BlockPool(2048)), SchedulerConfig(16, 512)),
                           lambda query_lens, context_lens: 1.0)
print(f"64 answers of 48 tokens: static {4 * 48} steps, continuous {alike.steps[0]}")

# %% [markdown]
# And every step pays for the machinery. How much of it is not the model?

# %% tags=["nbval-ignore-output"]
full = [step for step in steps if step.tokens == len(step.rows) >= 8]  # decode steps only
overhead = sorted(step.seconds - step.forward for step in full)[len(full) // 2]
forward = sorted(step.forward for step in full)[len(full) // 2]
print(f"{here}: of a decode step of 8 rows or more, {forward * 1e3:.1f} ms are the model and {overhead * 1e3:.2f} ms the rest "
      f"(scheduling, sampling, text)")
assert full

# %% [markdown]
# On a processor the rest is small because the model is slow. On a GPU a step of this model would take about a millisecond,
# and the same Python would cost as much as the model: the reason why engines schedule the next step while this
# one runs, and why lesson 4 captures steps as CUDA graphs.
#
# ## On a big GPU
#
# No GPU has run this lesson yet. The simulator can run Llama-3-8B on an H200, with the datasheet's roofline at 60 % of
# the peaks and 1 ms for each step on top (both are assumptions; every figure is *simulated*):

# %%
from minillm.measure.hardware import DATASHEETS
from minillm.measure.shape import KNOWN_SHAPES

gpu = step_times.roofline_times(KNOWN_SHAPES["llama-3-8b"], DATASHEETS["h200"], "bfloat16", efficiency=0.6, overhead=1e-3)
large = {"prompt": Lengths(512, 1.0, 8192), "output": Lengths(128, 1.0, 1024)}
loads = [5, 20, 30, 35, 45]
served = [predicted(rate, 2000, gpu, SchedulerConfig(256, 2048), 40_000, **large) for rate in loads]
mean = sum(item.output_tokens for item in workload.make_workload(2000, seed=1, **large)) / 2000
for rate, one in zip(loads, served):
    print(f"{rate:2} requests/s: {rate * mean:5.0f} tokens/s asked for, {one.output_tokens_per_second:5.0f} made, TTFT p95 "
          f"{one.ttft.p95 * 1e3:6.0f} ms, TPOT p50 {one.tpot.p50 * 1e3:4.1f} ms (simulated)")

# %%
most = max(rate for rate, one in zip(loads, served) if one.ttft.p95 < 1)
fig, axes = plots.figure(f"Llama-3-8B on an H200: 95 % of TTFT stay under 1 s up to {most} requests a second (simulated)",
                         "output tokens per second", "seconds", log="y")
axes.plot([one.output_tokens_per_second for one in served], [one.ttft.p95 for one in served], **plots.MEASURED,
          label="TTFT, 95th percentile")
axes.plot([one.output_tokens_per_second for one in served], [one.tpot.p50 for one in served],
          color=plots.LOOKS[1].color, linestyle="--", marker="s", label="TPOT, median")
legend = axes.legend()

# %% [markdown]
# Tokens asked for and made differ even at a light load, since the last answers end after the last request has come. At 45 a
# second they part for good: the line grows with every request, and the TTFT shown is that of 2,000 requests, not a limit.
#
# `minillm simulate` does this for any known model and card, with several replicas behind a router;
# `minillm bench --watch` draws blocks and slots of the real engine as it runs.
#
# ## Exercises and further reading
#
# | exercise | minutes | section |
# |---|---|---|
# | 3.1 What a static batch does with its rows | 5 | Static batching |
# | 3.2 The dynamic batcher | 15 | Dynamic batching |
# | 3.3 Who gets how many tokens of a step | 15 | A long prompt arrives |
# | 3.4 A step of continuous batching | 25 | Continuous batching |
# | *Further:* 3.5 whom to preempt, 3.6 a bug hunt | 5, 15 | When memory runs out |
#
# **Further reading:** *Orca: A Distributed Serving System for Transformer-Based Generative Models* (Yu et al., 2022);
# *Efficient Memory Management for Large Language Model Serving with PagedAttention* (Kwon et al., 2023), for preemption;
# *Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve* (Agrawal et al., 2024).
