# %% [markdown]
# # 4. Attention: variants, tiles and kernels
#
# Attention is the one part of a model whose work grows with the text behind each token. Its arithmetic is simple; what
# costs is what it moves. **This lesson asks: what does each kind of attention keep and read, and how is it computed
# without ever writing down the matrix that defines it?**
#
# *Assumes:* lessons 1 to 3 (attention itself, the roofline, blocks, steps). *Takes:* about 75 minutes of reading and
# running, an hour for the puzzles, and an hour and a half for the core exercises.
# *You will write:* grouped heads, a sliding window, the online softmax, the merge of two partial results, and the inner
# loop of a Triton kernel.

# %%
import os
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

if not torch.cuda.is_available():  # before minillm.kernels is imported: kernels run in Triton's interpreter then
    os.environ.setdefault("TRITON_INTERPRET", "1")

import minillm
from minillm import course
from minillm.attention import backends, flash, reference, variants
from minillm.measure import cost, memory, plots, timing
from minillm.measure.shape import KNOWN_SHAPES, MLA_SHAPES

plots.style()
device = minillm.measure.best_device()
here = minillm.measure.hardware.device_name(device)
generator = torch.Generator().manual_seed(0)

# %% [markdown]
# ## What a variant keeps
#
# In **multi-head attention** (MHA) every head has keys and values of its own. All of them are kept for every token, and
# all are read for every new one. The others save on that:
#
# - **MQA**: all query heads share one K/V head. **GQA**: groups of them share one. Llama-3-8B has 32 query heads and 8
#   K/V heads.
# - A **sliding window**: each query sees the last W keys only, and older ones need not be kept.
# - **MLA** (DeepSeek-V2): keys and values of all heads are made from one short **latent** vector of the token, and only
#   that is kept.
#
# Take Llama-3-8B and give it other attention, beside DeepSeek-V2 as published:

# %%
llama, deepseek = KNOWN_SHAPES["llama-3-8b"], MLA_SHAPES["deepseek-v2"]
kinds = {"MHA, 32 K/V heads": replace(llama, kv_heads=32), "GQA, 8 K/V heads": llama,
         "MQA, 1 K/V head": replace(llama, kv_heads=1), "MLA (DeepSeek-V2)": deepseek,
         "the same, expanded": replace(deepseek, absorbed=False)}
points = {name: (cost.attention_cost(kind, [1], [8192]).intensity, kind.kv_bytes_per_token(2) / kind.layers)
          for name, kind in kinds.items()}
for name, (intensity, kept) in points.items():
    print(f"{name:18} {kept:8,.0f} bytes a token and layer, {intensity:6.1f} FLOP for each byte moved in decode")

# %%
fig, axes = plots.figure("Sharing K and V keeps fewer bytes, and does more with each that decode reads",
                         "FLOP for each byte that attention moves in decode", "bytes kept, a token and layer",
                         log="xy")
for name, (intensity, kept) in points.items():
    axes.plot([intensity], [kept], color=plots.LOOKS[0].color, marker="o")
    note = axes.annotate(name, (intensity, kept), textcoords="offset points", xytext=(7, 5), fontsize=9.5)
axes.set_xlim(0.7, 2000)
axes.set_ylim(200, 300_000)
line = axes.axvline(206, color="#777777", linestyle=":")
note = axes.text(215, 120_000, "an H200's ridge:\n206 FLOP a byte", fontsize=9.5, color="#555555")

# %% [markdown]
# (MLA's point is for DeepSeek-V2's 128 heads, the others' for 32.) Two things change together. Fewer bytes are kept, so
# more requests fit (lesson 2). And each byte that is read serves more query heads, so decode moves to the right,
# towards the ridge where an H200 computes as long as it reads. MHA does one FLOP for a byte. A **group** of 4 heads
# does 4, and MLA's 128 heads on one latent reach the ridge.
#
# GQA is one line: K/V head g serves a run of neighbouring query heads. *Exercise 4.7* is this line; try it before the
# next cell. It is easy to get wrong. `repeat_interleave` gives a a b b. `repeat` gives a b a b, runs without error, and
# mixes the heads up.

# %%
kv = torch.arange(2.0).view(1, 2, 1)  # one token, two K/V heads, named 0 and 1
print("K/V head of each of 6 query heads:", variants.expand_kv_heads(kv, 6).flatten().int().tolist())
q = torch.randn(5, 6, 8, generator=generator)  # [tokens, heads, D]
k, v = torch.randn(2, 5, 2, 8, generator=generator)
seen = reference.causal_mask(5, 5, None, "cpu")
grouped = variants.grouped_query(q, k, v, 0.35, seen)
for name, (keys, values) in {"repeat_interleave": (k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)),
                             "repeat": (k.repeat(1, 3, 1), v.repeat(1, 3, 1))}.items():
    same = torch.allclose(variants.multi_head(q, keys, values, 0.35, seen), grouped, atol=1e-5)
    print(f"MHA over K and V from {name}: the same as GQA: {same}")

# %% [markdown]
# What is it worth here? One query of 32 heads meets a long cache, with 32 K/V heads and with fewer, by torch's own
# fused attention. The heads of a group stand in one product, as if they were several queries. Your guess: how many
# times faster is it with 8 K/V heads than with 32?

# %%
guess = course.guess("4.gqa8", None)  # times

# %% tags=["nbval-ignore-output"]
machine = minillm.measure.hardware.measure_machine(device)
context, counts = 8192 if device.type == "cpu" else 131072, [32, 8, 2, 1]
dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
draw = {"generator": torch.Generator(device).manual_seed(0), "device": device, "dtype": dtype}
q = torch.randn(32, 128, **draw)
caches = {n: torch.randn(2, n, context, 128, **draw) for n in counts}  # K and V, head by head
timed = timing.alternate({n: lambda n=n, c=c: sdpa(q.view(1, n, 32 // n, 128), *c[:, None], scale=128**-0.5)
                          for n, c in caches.items()}, rounds=5, device=device)
roof = {n: cost.predict(4 * 32 * context * 128, cache.nbytes, machine, str(dtype).removeprefix("torch.")).seconds
        for n, cache in caches.items()}
for n in counts:
    print(f"{here}: {n:2} K/V heads, {caches[n].nbytes / 1e6:5.0f} MB: {timed[n]}")
assert caches[32].nbytes == 4 * caches[8].nbytes

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"With a quarter of the K/V heads attention in decode is "
                         f"{timed[32].median / timed[8].median:.1f} times as fast", "K/V heads for 32 query heads",
                         f"ms for one query over {context:,} keys", log="xy")
axes.set_yscale("log", base=2)
axes.yaxis.set_major_formatter("{x:g}")
plots.predicted_and_measured(axes, counts, [roof[n] * 1e3 for n in counts], [timed[n].median * 1e3 for n in counts],
                             None if guess is None else (8, timed[32].median * 1e3 / guess))
assert len(axes.lines) >= 2

# %% [markdown]
# The roof falls with the bytes until arithmetic takes over: all 32 query heads still do theirs, and a processor's ridge
# lies at a few FLOP for each byte. The measured times lie above it. Products of one query, or of a few, are as thin as
# a decode step's (lesson 1), and use a machine badly. On a GPU the ridge is far to the right, and each K/V head saved
# is time saved.
#
# The variants also differ in who sees whom. A window of W means that a query sees W keys, itself included (*exercise
# 4.8*). And when there are more keys than queries, the queries are the *last* positions: a decode step has one query,
# and it sees everything.

# %%
masks = {"a prompt of 6": (6, 6, None), "a window of 3": (6, 6, 3), "2 new tokens, 4 cached": (2, 6, None)}
for name, (queries, keys, window) in masks.items():
    rows = reference.causal_mask(queries, keys, window, "cpu").int().tolist()
    print(f"{name:24}" + ("\n" + " " * 24).join(" ".join(map(str, row)) for row in rows))

# %% [markdown]
# Windows have a catch. Trained without one, a model puts the attention that it needs nowhere on the first tokens, the
# **sinks** (StreamingLLM, Xiao et al. 2023). SmolLM2 was trained so. Let it read 320 tokens of Python's documentation
# with everything in sight, with a window, and with a window that leaves the first four tokens in sight:

# %% tags=["nbval-ignore-output"]
from pydoc_data.topics import topics

from minillm.cache.sinks import SinkKVCache
from minillm.model import zoo
from minillm.model.batch import make_batch

loaded, losses = zoo.load("smollm2", dtype="float32", device=device), {}
ids = loaded.tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))[:321]
batch = make_batch([(0, ids[:320], 0)], device, all_logits=True)
for name, window, sinks in (("all tokens", 320, 0), ("the last 64", 64, 0), ("the last 60 and the first 4", 60, 4)):
    cache = SinkKVCache(loaded.model.kv_specs(), 1, window, sinks, device=device)
    logits = loaded.model(batch, cache).float()  # [320, vocabulary]
    losses[name] = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:], device=device), reduction="none")
    print(f"{here}: in sight {name:27} perplexity of tokens 161 to 320: {losses[name][160:].mean().exp().item():7.1f}")
assert losses["the last 64"][160:].mean() > losses["the last 60 and the first 4"][160:].mean() + 1

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure("When the first tokens leave the window the loss jumps; four of them repair most of it",
                         "tokens read", "added loss, mean of 32 (nats)")
for look, (name, loss) in zip(plots.LOOKS, list(losses.items())[1:]):
    added = (loss - losses["all tokens"]).view(10, 32).mean(1).cpu()
    axes.plot(range(32, 321, 32), added, color=look.color, linestyle=look.line, marker=look.marker,
              label=f"in sight: {name}")
axes.margins(y=0.3)
axes.legend()
assert len(axes.lines) == 2

# %% [markdown]
# Four tokens win back most of the loss. What is still missing at the end is probably what a window really forgets: text
# further back than 60 tokens. Each point is a mean of 32 tokens of one text, so single ones go up and down with it.
#
# MLA goes further than sharing heads. Written as defined, it expands each latent to keys and values of all heads, and
# nothing is saved. But q·(W·c) = (Wᵀ·q)·c. The up-projection can be **absorbed** into the query, once, and attention
# then runs over the latents themselves, as MQA with one long K/V head. The result is the same:

# %%
def draw64(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


q_nope, q_rope = draw64(12, 4, 8), draw64(12, 4, 4)  # 12 tokens, 4 heads: 8 values without and 4 with rotation
latent, k_rope, w_uk, w_uv = draw64(12, 16), draw64(12, 4), draw64(4, 8, 16), draw64(4, 8, 16)
expanded = variants.mla_expanded(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
absorbed = variants.mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
print("kept of a token: expanded", 4 * (8 + 4 + 8), "values, absorbed", 16 + 4)
print("the same result, to 1e-12:", torch.allclose(expanded, absorbed, rtol=0, atol=1e-12))

# %% [markdown]
# (*Further: exercise 4.13.* A known mistake: the scale stays 1/√(8 + 4), the length of an expanded key, although the
# absorbed one is 20 values long.)
#
# ## The matrix that nobody wants
#
# Attention of N queries over N keys goes through N² scores for each head. Written down, they are by far the largest
# thing in it. Your guess: how many MB does one head need at its highest point for 4,096 tokens in float32?

# %%
guess = course.guess("4.mb4k", None)  # MB

# %%
def standard() -> torch.Tensor:
    return flash.standard_attention(q, k, v, 0.125)


def tiled() -> torch.Tensor:
    return flash.tiled_attention(q, k, v, 0.125, 256, 256)[0]


lengths, peaks = [512, 1024, 2048, 4096], {"standard": [], "tiled": []}
for n in lengths:
    q, k, v = torch.randn(3, n, 1, 64, generator=generator)
    for work, row in zip((standard, tiled), peaks.values()):
        row.append(memory.peak_bytes(work) / 1e6)
    print(f"{n:5} tokens: standard {peaks['standard'][-1]:6.1f} MB, tiled {peaks['tiled'][-1]:5.2f} MB")
    if n == 1024:
        print("      the same result:", torch.allclose(standard(), tiled(), atol=1e-5))

# %%
fig, axes = plots.figure("Standard attention's memory grows with the square of the text, "
                         "tiled attention's with the text", "tokens", "MB at most, one head, float32",
                         log="xy")
for look, (name, values) in zip(plots.LOOKS, peaks.items()):
    axes.plot(lengths, values, color=look.color, linestyle=look.line, marker=look.marker, label=name)
if guess is not None:
    axes.plot([4096], [guess], **plots.GUESSED, label="your guess")
legend = axes.legend()

# %% [markdown]
# One copy of the scores is 4,096² · 4 bytes = 67 MB, and three are alive at once: scores, masked scores, weights; and
# the mask beside them, a byte a score. The nine heads of SmolLM2 would take 604 MB for one copy in a layer, more than
# all its weights in float32 (538 MB). The tiled way holds tiles of scores, 256² · 4 bytes a copy, and the result, which
# is all that grows.
#
# ## Softmax, one tile at a time
#
# Softmax seems to need the whole row: divide by the sum of all e^score, less the largest for safety. But both can be
# kept as one goes. After some keys, remember the largest score m, the sum l of e^(score - m), and the weighted sum of
# the values. When a larger score comes, everything so far is multiplied by e^(m_old - m_new). Follow it by hand, with
# values 1, 2, 3, 4:

# %%
scores, values = torch.tensor([1.0, 3.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
state = torch.full((1, 1), float("-inf")), torch.zeros(1, 1), torch.zeros(1, 1, 1)  # m, l, acc
for keys in (slice(0, 2), slice(2, 4)):
    state = flash.online_softmax_update(scores[keys].view(1, 1, -1), values[keys].view(1, -1, 1), *state)
    m, total, acc = (part.item() for part in state)
    print(f"after scores {scores[keys].tolist()}: m = {m:.0f}, l = {total:.4f}, acc = {acc:.4f}, "
          f"acc / l = {acc / total:.4f}")
print(f"all at once: {(torch.softmax(scores, 0) * values).sum().item():.4f}")

# %% [markdown]
# After the first tile l is e⁻² + 1. The second brings m = 4: the old l shrinks by e⁻¹, and e⁻² + 1 is added. *Exercise
# 4.9* is this update. With it, attention needs one tile of queries and one tile of keys at a time: **FlashAttention**
# (Dao et al. 2022). Tiles in which the mask hides everything are not even read:

# %%
fig, both = plots.plt.subplots(1, 2, figsize=(7.6, 4.0))
size, rows = 64, flash.tiles(range(512), 64)
for axes, window, title in zip(both, (None, 128), ("Causal", "A window of 128")):
    sight = flash.Sight(0, True, window)
    grid = [[0 if sight.hides_all(row, keys) else 2 if sight.shows_all(row, keys) else 1 for keys in rows]
            for row in rows]
    done = sum(kind > 0 for line in grid for kind in line)
    plots.finish(axes, f"{title} reads {done} of 64 tiles", f"tile of {size} keys", f"tile of {size} queries")
    shown = axes.imshow(grid, cmap="Greys", vmin=0, vmax=3)
    axes.grid(visible=False)
note = both[0].text(7.2, 0.0, "white: skipped\nlight: masked\ndark: no mask", ha="right", va="top", fontsize=10)

# %% [markdown]
# A mask has two edges, and tiles lie across both. *Further: exercise 4.14* is a bug hunt there.
#
# ## Bytes, counted
#
# The N² scores are still computed. What is saved is moving them. Count what goes between slow memory (a GPU's HBM) and
# fast memory (on the chip), for one head of 64 values in 16 bits. Standard attention writes and reads N² scores twice.
# Tiles read K and V once for each tile of queries: N²·d²/M bytes up to a factor, with M the fast memory.

# %%
lengths = [512, 1024, 2048, 4096]
moved = {"standard": [], "tiled, M = 64 KB": [], "tiled, M = 256 KB": []}
for n in lengths:
    q, k, v = (torch.empty(n, 1, 64, dtype=torch.bfloat16, device="meta") for _ in range(3))  # shapes only
    for row, kb in zip(moved.values(), (None, 64, 256)):
        counted = flash.Traffic()
        if kb is None:
            flash.standard_attention(q, k, v, 0.125, counted)
        else:
            block = flash.block_that_fits(kb * 1024, 64)
            flash.tiled_attention(q, k, v, 0.125, block, block, traffic=counted)
        row.append(counted.bytes / 1e6)
for name, row in moved.items():
    print(f"{name:18}", *(f"{mb:8.1f}" for mb in row), "MB")
unmasked, block = flash.Traffic(), flash.block_that_fits(64 * 1024, 64)
flash.tiled_attention(q, k, v, 0.125, block, block, causal=False, traffic=unmasked)
print(f"without a mask, M = 64 KB, 4,096 tokens: {unmasked.bytes / 1e6:.1f} MB")

# %%
share = moved["standard"][-1] / moved["tiled, M = 64 KB"][-1]
fig, axes = plots.figure(f"Tiles in 64 KB that skip what is hidden move {share:.0f} times fewer bytes", "tokens",
                         "MB moved, one head of 64, 16 bits", log="xy")
for look, (name, row) in zip(plots.LOOKS, moved.items()):
    axes.plot(lengths, row, color=look.color, linestyle=look.line, marker=look.marker, label=name)
legend = axes.legend()

# %% [markdown]
# About half of that is the mask: standard attention moves the hidden scores too. Without one the tiles would move 34.6
# MB, 3.9 times fewer. Four times the fast memory makes tiles four times as tall, and K and V are read a quarter as
# often. A processor has fast memory too, its caches. Does the same code in plain torch gain there, and with tiles of
# which size?

# %% tags=["nbval-ignore-output"]
n, tiles = (1024, [32, 64, 128, 256, 512, 1024]) if device.type == "cpu" else (8192, [256, 512, 1024, 2048, 4096, 8192])
q, k, v = torch.randn(3, n, 8, 64, **draw)
calls = {"standard": lambda: flash.standard_attention(q, k, v, 0.125),
         "fused (sdpa)": lambda: backends.attend("sdpa", q, [k], [v], [n], 0.125)}
calls |= {tile: lambda tile=tile: flash.tiled_attention(q, k, v, 0.125, tile, tile) for tile in tiles}
timed = timing.alternate(calls, rounds=3, device=device)
for name, timing_of in timed.items():
    print(f"{here}: {f'tiles of {name}' if name in tiles else name:13} {timing_of}")
assert torch.allclose(calls["standard"](), calls[tiles[1]]()[0], atol=1e-5 if dtype == torch.float32 else 5e-2)

# %% tags=["nbval-ignore-output"]
best = min(tiles, key=lambda tile: timed[tile].median)
shares = {tile: timed[tile].median / timed["standard"].median for tile in tiles}
fig, axes = plots.figure(f"Tiles of {best} in plain torch take {shares[best]:.2f} of standard's time, "
                         f"tiles of {tiles[0]} take {shares[tiles[0]]:.2f}",
                         "queries, and keys, of a tile", f"ms, {n:,} tokens, 8 heads", log="xy")
axes.set_yscale("log", base=2)
axes.yaxis.set_major_formatter("{x:g}")
axes.plot(tiles, [timed[tile].median * 1e3 for tile in tiles], **plots.MEASURED, label="tiled, in torch")
for look, name in zip(plots.LOOKS[1:], ("standard", "fused (sdpa)")):
    axes.axhline(timed[name].median * 1e3, color=look.color, linestyle=look.line, label=name)
axes.set_ylim(bottom=timed["fused (sdpa)"].median * 1e3 / 6)
axes.legend(loc="lower center")
assert len(axes.lines) == 3

# %% [markdown]
# Tiles compute about half of the scores, those that the mask leaves, and what they compute stays in the caches. Against
# that stands a loop in Python: small tiles go through it often. One tile as large as the text keeps all scores again,
# and pays for the online softmax besides. A fused kernel has the tiles without the loop. That is what we write below.
#
# ## Splitting the keys
#
# In decode there is one query, and so one tile of queries: a single program for each head, on a chip of 132 processors
# (an H200). The keys must be split instead. Each part gives its result and the logarithm of its sum, L = log Σ e^score,
# and two parts **merge** exactly: L = log(e^L₁ + e^L₂), out = e^(L₁-L)·out₁ + e^(L₂-L)·out₂. A part without keys has L
# = -∞ and changes nothing. *Exercise 4.10*:

# %%
q, (k, v) = torch.randn(1, 4, 32, generator=generator), torch.randn(2, 400, 4, 32, generator=generator)
whole, _ = flash.tiled_attention(q, k, v, 0.2)
for splits in (1, 3, 16, 500):  # more parts than keys: some are empty
    out, _ = flash.split_attention(q, k, v, 0.2, splits)
    print(f"{splits:4} splits: the same within 1e-6: {torch.allclose(out, whole, atol=1e-6)}")

# %% [markdown]
# ## A gentle way into Triton
#
# Torch cannot keep a tile on the chip between two operations. A kernel can. **Triton** is a language for kernels inside
# Python: one writes what a **program** does with a block of elements, and a launch starts many programs, each with a
# number. The compiler divides a block among the threads. Without a GPU an interpreter runs the same code, one program
# after another, slowly. A kernel that doubles six numbers, in blocks of four:

# %%
ready = find_spec("triton") is not None
if ready:
    import triton
    import triton.language as tl
    from minillm.kernels import puzzles

    @triton.jit
    def double_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # this program's places
        x = tl.load(x_ptr + at, mask=at < count, other=0.0)  # 0 where there is no element: nothing is read there
        tl.store(out_ptr + at, 2 * x, mask=at < count)

    x, out = torch.arange(6.0, device=device), torch.empty(6, device=device)
    double_kernel[(triton.cdiv(6, 4),)](x, out, 6, BLOCK=4)  # [how many programs](what each is given)
    print(out.tolist())
else:
    print("Triton is not installed here (it needs Linux): cells with kernels are passed over, torch's stand for them.")

# %% [markdown]
# `x_ptr` is where the tensor begins. A pointer plus a block of offsets is a block of addresses; `tl.load` takes what
# lies there. The rest is mostly torch under other names:
#
# | in torch | in Triton |
# |---|---|
# | `torch.arange(n)` | `tl.arange(0, BLOCK)`; BLOCK: a `tl.constexpr`, fixed when it is compiled, a power of two |
# | `torch.zeros(m, n)`, `x.to(torch.float32)` | `tl.zeros([M, N], tl.float32)`, `x.to(tl.float32)` |
# | `x[:, None]` | the same: a column, so that rows and columns make a two-dimensional block |
# | `torch.exp`, `torch.exp2`, `torch.where`, `torch.maximum` | `tl.exp`, `tl.exp2`, `tl.where`, `tl.maximum` |
# | `x.sum(dim=1)`, `x.amax(dim=1)` | `tl.sum(x, axis=1)`, `tl.max(x, axis=1)` |
# | `c + a @ b` | `tl.dot(a, b, c)`: tiles on the tensor cores; `b.T` for a transposed one |
#
# (Triton's documentation lists the others under *triton.language*.) Six puzzles go from here to what attention needs,
# ten minutes each, every one with its specification in torch. Three of them, as what one program loads (dark) and
# stores (hatched):

# %%
def grid_of(axes, at: tuple[float, float], rows: int, columns: int, name: str, dark=(), hatched=()) -> None:
    """A tensor of cells with its upper left corner at `at`; those in `dark` are loaded, in `hatched` stored."""
    for r in range(rows):
        for c in range(columns):
            look = plots.LOOKS[0] if (r, c) in dark else plots.LOOKS[3]
            filled = (r, c) in dark or (r, c) in hatched
            axes.add_patch(plots.plt.Rectangle((at[0] + c, at[1] + r), 1, 1, edgecolor="#777777", linewidth=0.8,
                                               facecolor=look.color if filled else "white",
                                               hatch=look.hatch if filled else ""))
    axes.text(at[0], at[1] - 0.35, name, fontsize=9.5)


# %%
fig, (mask, gather, tile) = plots.plt.subplots(3, 1, figsize=(6.8, 6.6), height_ratios=(4.4, 4.4, 8.4))
grid_of(mask, (0, 0), 1, 10, "4.2  times: 10 of them, blocks of 4", dark=[(0, c) for c in range(7, 10)])
grid_of(mask, (0, 2.2), 1, 10, "gaps: program 2 has places 8 to 11, and 10 and 11 are masked off",
        hatched=[(0, 8), (0, 9)])
grid_of(gather, (0, 0), 1, 2, "4.6  table", dark=[(0, 1)])
grid_of(gather, (4, 0), 1, 16, "blocks of 4 slots: the table says 3, 1", dark=[(0, 5)])
grid_of(gather, (4, 2.2), 1, 8, "tokens in order: program 5 fetches token 5, slot 1 of block 1", hatched=[(0, 5)])
grid_of(tile, (0, 0), 6, 6, "4.5  a", dark=[(r, c) for r in (2, 3) for c in range(6)])
grid_of(tile, (8, 0), 6, 6, "b", dark=[(r, c) for r in range(6) for c in (4, 5)])
grid_of(tile, (16, 0), 6, 6, "a @ b: program (1, 2)", hatched=[(r, c) for r in (2, 3) for c in (4, 5)])
for axes, height in zip((mask, gather, tile), (3.4, 3.4, 6.4)):
    axes.set(xlim=(-0.2, 22.2), ylim=(height, -1.1))
    axes.axis("off")
title = mask.set_title("A program turns its number into addresses")

# %% [markdown]
# | puzzle | what is new |
# |---|---|
# | 4.1 add two vectors | a program's number says which elements are its own |
# | 4.2 load with a mask | the last block is not full, and the first element has nothing before it |
# | 4.3 sum each row | a reduction; rows that lie apart in memory; a wide sum |
# | 4.4 softmax of each row | load once, do everything, store once: fusing |
# | 4.5 a matrix product in tiles | a loop, two-dimensional blocks, `tl.dot` on the tensor cores |
# | 4.6 tokens through a block table | an address that is itself loaded |
#
# Launch all six, against their specifications:

# %%
if ready:
    on = {"device": device}
    x, y, table = torch.arange(12.0, **on), torch.rand(12, **on), torch.tensor([2, 0], dtype=torch.int32, **on)
    m, blocks = torch.rand(5, 6, **on), torch.rand(3, 4, 6, **on)
    pairs = {"add": (puzzles.add(x, y, 4), puzzles.add_reference(x, y)),
             "gaps": (puzzles.gaps(x**2, 8), puzzles.gaps_reference(x**2)),
             "row_sum": (puzzles.row_sum(m[:, :3]), puzzles.row_sum_reference(m[:, :3])),
             "softmax": (puzzles.softmax(m), puzzles.softmax_reference(m)),
             "matmul": (puzzles.matmul(m, m.T.contiguous(), 16), puzzles.matmul_reference(m, m.T)),
             "gather": (puzzles.gather(blocks, table, 7), puzzles.gather_reference(blocks, table, 7))}
    for name, (ours, wanted) in pairs.items():
        print(f"{name:8} error below tolerance: {torch.allclose(ours, wanted, atol=1e-6)}")

# %% [markdown]
# When a puzzle's check fails, it shows which elements were loaded and stored, because a wrong address says more than a
# wrong number. Suppose somebody forgets to multiply the program's number by the block:

# %% tags=["nbval-ignore-output"]
watched = ready and device.type == "cpu"  # accesses are seen in the interpreter only
if watched:
    from minillm.course import pictures

    @triton.jit
    def wrong_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
        at = tl.program_id(0) + tl.arange(0, BLOCK)
        tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(y_ptr + at))

    def wrong_add(x: torch.Tensor, y: torch.Tensor, block: int) -> torch.Tensor:
        out = torch.empty_like(x)
        wrong_kernel[(len(x) // block,)](x, y, out, BLOCK=block)
        return out

    drawn = pictures.draw(puzzles.add, wrong_add, {"x": x, "y": y, "block": 4})
    print(*drawn, sep="\n")
assert not watched or "R loaded again" in drawn[-1]

# %% [markdown]
# `minillm check 4.1` looks at yours like that. And the same watching counts. Puzzle 4.5 multiplies two matrices of 16
# by 16, and each of its programs loads the rows of `a` and the columns of `b` that it needs:

# %% tags=["nbval-ignore-output"]
if watched:
    from minillm.course import tracing

    a, b = torch.rand(2, 16, 16)
    for block in (2, 4, 8, 16):
        with tracing.record() as trace:
            puzzles.matmul(a, b, block)
        loads = int(trace.seen["a"].loads.sum() + trace.seen["b"].loads.sum())
        print(f"tiles of {block:2}: {(16 // block) ** 2:2} programs, {loads:6,} elements loaded, "
              f"{2 * 16**3 / loads:4.1f} multiplications and additions for each")
assert not watched or loads == 2 * 16**2

# %% [markdown]
# Twice the tile's side, half the loads. It is the law of FlashAttention's tiles again, and the reason for everything
# that a kernel does to keep tiles large.
#
# ## The kernels, exact
#
# Six kernels serve the model on a GPU. Each has a twin in torch that says what it computes, and is held to it in
# float64:
#
# - `flash_attention`: prefill, for a ragged batch, K and V end to end or in blocks.
# - `paged_decode` and `merge`: one query a row, K and V where they lie, the keys split.
# - `rope_cache`: rotates q and k and writes k and v to their slots, in one pass.
# - `rms_norm` and `swiglu`: two fused passes of the layer around them.
#
# The first is `flash.tiled_attention` again. A program has one tile of queries of one head, and does this:
#
#     q = its tile of queries, loaded once
#     for run in (tiles on the window's edge, tiles that all queries see, tiles on the diagonal):
#         for keys in run:
#             k, v = their tiles, from end to end or through the block table
#             best, total, out = attend_tile(q, k, v, …)    # masked on an edge only
#     store out / total, and best + log total
#
# `attend_tile` is `online_softmax_update` in Triton, and your *exercise 4.11*; how a block table is read is 4.12.
#
# Two things differ from the torch version. Weights are powers of 2, which the hardware has, with log₂ e in the scale.
# And a tile that nobody has to mask takes a shorter way. Now all kernels, on lengths that no tile divides, with an
# empty row, shuffled blocks, and NaN in every slot that holds no token:

# %%
def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator).to(device)


def paged(k: torch.Tensor, lens: list[int], size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows end to end [S, H, D] put into shuffled blocks [blocks, size, H, D], NaN elsewhere, and their tables."""
    pages = [-(-n // size) for n in lens]
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(1)).split(pages)
    blocks = k.new_full((sum(pages), size, *k.shape[1:]), float("nan"))
    for mine, row in zip(order, k.split(lens)):
        blocks[mine] = torch.cat([row, k.new_full((-len(row) % size, *k.shape[1:]), float("nan"))]).view(
            len(mine), size, *k.shape[1:])
    tables = torch.zeros(len(lens), max(pages), dtype=torch.int32)
    for row, mine in enumerate(order):
        tables[row, : len(mine)] = mine
    return blocks, tables


def agrees(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Float32 against the twin in float64: the largest error, as a share of the largest value, is at most 1e-5."""
    return bool((ours.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max())


# %%
if ready:
    from minillm.kernels import flash_attention, merge, paged_decode, rms_norm, rope_cache, swiglu

    new, cached = [37, 1, 0, 20], [37, 50, 5, 45]  # a prompt, a decode step, a row with nothing to do, a chunk
    q, k, v = randn(58, 4, 64), randn(137, 2, 64), randn(137, 2, 64)
    wide, shared = [x.double() for x in (q, k, v)], {"query_lens": new, "key_lens": cached, "scale": 0.125}
    (k_blocks, tables), (v_blocks, _) = paged(k, cached), paged(v, cached)
    flat, in_blocks = (q, k, v), (q, k_blocks, v_blocks)
    for name, given, options in (("causal", flat, {}), ("no mask", flat, {"causal": False}),
                                 ("in blocks", in_blocks, {}), ("window of 9", in_blocks, {"window": 9})):
        wanted = flash_attention.flash_attention_reference(*wide, **shared, **options)
        out = flash_attention.flash_attention(*given, **shared, **options,
                                              block_tables=tables if given is in_blocks else None)
        print(f"prefill, {name:14} error below tolerance: {agrees(out, wanted)}")

# %%
if ready:
    lens = [70, 1, 33, 64]
    q, k, v = randn(4, 8, 64), randn(168, 2, 64), randn(168, 2, 64)  # a group of 4 query heads for each K/V head
    (k_blocks, tables), (v_blocks, _) = paged(k, lens), paged(v, lens)
    wanted = flash_attention.flash_attention_reference(*(x.double() for x in (q, k, v)), [1] * 4, lens, 0.125)
    lens = torch.tensor(lens, dtype=torch.int32, device=device)
    for splits in (1, 2, 5):
        out = paged_decode.paged_decode(q, k_blocks, v_blocks, tables.to(device), lens, 0.125, splits=splits)
        print(f"decode, splits: {splits}       error below tolerance: {agrees(out, wanted)}")
    parts, lse = randn(6, 5, 64), randn(6, 5)
    lse[0, 2:] = float("-inf")  # parts without keys
    wanted, _ = merge.merge_reference(parts.double(), lse.double())
    print(f"merge, 5 parts          error below tolerance: {agrees(merge.merge_splits(parts, lse)[0], wanted)}")

# %%
if ready:
    x, residual, weight, gate, up = randn(7, 100), randn(7, 100), randn(100), randn(7, 100), randn(7, 100)
    wanted, _ = rms_norm.add_rms_norm_reference(x.double(), residual.double(), weight.double(), 1e-5)
    out, _ = rms_norm.add_rms_norm(x, residual, weight)
    print(f"add and RMSNorm         error below tolerance: {agrees(out, wanted)}")
    wanted = swiglu.swiglu_reference(gate.double(), up.double())
    print(f"SwiGLU                  error below tolerance: {agrees(swiglu.swiglu(gate, up), wanted)}")
    q, k, v, cos, sin = randn(5, 4, 64), randn(5, 2, 64), randn(5, 2, 64), randn(5, 32), randn(5, 32)
    slots = torch.tensor([9, 3, -1, 0, 11], device=device)  # -1: written nowhere
    stores = [torch.zeros(3, 4, 2, 64, device=device) for _ in range(2)]
    twins = [store.double() for store in stores]
    out = rope_cache.rope_and_store(q, k, v, cos, sin, slots, *stores)
    wanted = rope_cache.rope_and_store_reference(*(x.double() for x in (q, k, v, cos, sin)), slots, *twins)
    same = all(agrees(ours, twin) for ours, twin in zip((out, *stores), (wanted, *twins)))
    print(f"RoPE and store          error below tolerance: {same}")

# %% [markdown]
# The tests sweep this over lengths, groups, head sizes to 256, 16-bit types, and INT8 and FP8 caches.
#
# ## Split-KV's effect
#
# Time cannot be measured without a GPU, but work can be counted. An H200 has 132 processors, and two programs of the
# decode kernel are to run on each: 264 places. A program goes through its keys in tiles of 32. How long it takes is
# then the longest chain of tiles one after another: rounds of programs × tiles of each. Your guess for one request of
# Llama-3-8B with 32,768 tokens (8 K/V heads): how many times shorter does splitting make that chain at best?

# %%
guess = course.guess("4.splits", None)  # times

# %%
if ready:
    tile = paged_decode.configurations("sm_90", 128, 128, kv_bytes=2, group=4)[0].tile
    tiles_of_a_row, places = 32768 // tile, paged_decode.PROGRAMS_PER_PROCESSOR * 132
    print(f"{tiles_of_a_row} tiles of {tile} keys in a row, {places} programs at once")
    counts, chains, chosen = [2**n for n in range(9)], {}, {}
    for batch in (1, 8, 32):
        programs = 8 * batch  # of a row and a K/V head
        chains[batch] = [-(-programs * splits // places) * -(-tiles_of_a_row // splits) for splits in counts]
        taken = chosen[batch] = paged_decode.choose_splits(programs, 32768, tile, places)
        chain = -(-programs * taken // places) * -(-tiles_of_a_row // taken)
        print(f"batch {batch:2}: {programs:3} programs, a chain of {chains[batch][0]} tiles; in {taken:2} splits, the "
              f"launcher's choice, of {chain}")

# %%
if ready:
    best = chains[1][0] / min(chains[1])
    fig, axes = plots.figure(f"One request gains up to {best:.0f} times by splitting, 32 gain nothing "
                             "(counted, not timed)", "splits of each row's keys", "tiles one after another, H200",
                             log="xy")
    for look, (batch, chain) in zip(plots.LOOKS, chains.items()):
        axes.plot(counts, chain, color=look.color, linestyle=look.line, marker=look.marker, label=f"batch of {batch}")
        at = chosen[batch]
        axes.plot([at], [-(-8 * batch * at // places) * -(-tiles_of_a_row // at)], color=look.color, marker="o",
                  fillstyle="none", markersize=14, linestyle="", label="taken by the launcher" if batch == 1 else None)
    if guess is not None:
        axes.plot([32], [chains[1][0] / guess], **plots.GUESSED, label="your guess")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    legend = axes.legend(loc="lower left")

# %% [markdown]
# One request has 8 programs, so 124 of 132 processors would look on. A batch of 32 has 256, and they fill the places by
# themselves. Between them the launcher takes the fewest splits that fill the last round nearly as well as any: for one
# request 30, a chain 29 times shorter, of 32 at best.
#
# It decides by the room in the block table, never by the lengths: those lie on the GPU, and to fetch them would stop a
# **CUDA graph**. That is a whole decode step recorded once and launched as one, so that a step of a small model does
# not wait for Python (lesson 3). A graph has fixed addresses and fixed launches; lengths and tables are tensors in it.
#
# ## What the compiler made of it
#
# A program runs on **warps** of 32 threads (64 on AMD). It needs registers and shared memory, and a processor holds as
# many programs as both allow: its **occupancy**.
# Too many registers, and some **spill** to slow memory. Triton compiles for a GPU that is not there, so we can look,
# for three kernels: a tile of puzzle 4.5, prefill with heads of 128, and decode with groups of 8.

# %% tags=["nbval-ignore-output"]
reports = []
if ready:
    from minillm.kernels import aot
    from minillm.kernels.chips import CHIPS

    reports = aot.compile_all(modules=["puzzles", "flash_attention", "paged_decode"],
                              begins=("puzzle matmul", "flash d128 causal", "decode d128 group 8"))
    for report in reports:
        on_chip = report.occupancy()
        print(f"{report.kernel.removesuffix('_kernel'):12} {report.chip:7} registers {report.registers:3}, shared "
              f"{report.shared_bytes / 1024:5.0f} KB, warps {on_chip.warps:2} of {on_chip.max_warps} "
              f"({on_chip.limit}), {', '.join(report.instructions)}")
assert not any(report.problems() for report in reports)

# %%
if ready:
    chips = [chip for chip in CHIPS if any(report.chip == chip for report in reports)]
    print(" " * 12, *(f"{CHIPS[chip].sold_as.split(',')[0]:>8}" for chip in chips))
    for kernel in dict.fromkeys(report.kernel for report in reports):
        used = [next(r for r in reports if (r.kernel, r.chip) == (kernel, chip)).instructions[0] for chip in chips]
        print(f"{kernel.removesuffix('_kernel'):12}", *(f"{name:>8}" for name in used))
    print("no register spilled:", not any(count for report in reports for count in report.spills.values()))

# %% [markdown]
# The same source becomes another **tensor-core** instruction on each chip. An `mma` is one warp's. Hopper's `wgmma` and
# Blackwell's `tcgen05` multiply 64 rows or more, out of shared memory. Prefill has tiles of 128 queries and uses them.
# Decode has one query for each head of a group, too few, and stays with `mma`: it waits for memory anyhow. So does the
# puzzle, whose tile is small. `mfma` is AMD's.
#
# Occupancy is low, and on purpose. A prefill program on Hopper holds the results of 128 queries, 128 values each: 64
# registers for each of its 256 threads. With scores, addresses and the rest it takes the 255 that a thread may have. So
# one program fills the processor, and no other is there to compute while it waits. It helps itself: the loads of the
# next tiles are under way while it multiplies this one. Decode keeps little and loads much, so more of its programs
# fit, with more tiles on their way.
#
# `minillm kernels` prints this for every kernel and configuration.
#
# ## Where it loses
#
# **Splitting costs bytes.** Each part writes its result in float32, and the merge reads it. What share is that of K and
# V, for Llama-3-8B?

# %%
for context in (512, 4096, 32768):
    kv = context * 8 * 128 * 2 * 2  # a request's K and V in one layer, 16 bits
    shares = {splits: 2 * 32 * splits * (128 + 1) * 4 / kv for splits in (4, 16, 64)}
    print(f"{context:6} tokens: " + ", ".join(f"{splits:2} splits {share:6.1%}" for splits, share in shares.items()))

# %% [markdown]
# At 512 tokens 64 splits would move as much as K and V themselves, in parts of 8 keys. A split should have some tiles
# to do, so the launcher gives each at least two.
#
# **Absorbing costs arithmetic.** MLA's absorbed heads are 576 and 512 long instead of 192 and 128. In decode that is
# little beside the bytes saved. In prefill every query shares the bytes, and arithmetic is what one pays for:

# %%
for name, query, context in (("decode over 8,192", 1, 8192), ("prefill of 8,192", 8192, 8192)):
    for absorbed in (True, False):
        part = cost.attention_cost(replace(deepseek, absorbed=absorbed), [query], [context])
        print(f"{name:18} {'absorbed' if absorbed else 'expanded':8} {part.flops / 1e9:10,.1f} GFLOP, "
              f"{part.bytes / 1e6:8,.1f} MB, a layer")

# %% [markdown]
# That is 3.4 times the arithmetic. So engines expand latents for prefill and absorb for decode.
#
# **Small tiles cost steps.** In the figure with the tiles of torch operations each one pays for a turn of a loop; in a
# kernel each waits for its own loads. **A window forgets**, and a model that was not trained with one loses its sinks.
#
# ## On a big GPU

# %%
import json
from pathlib import Path

recorded = sorted((Path(minillm.__file__).parents[1] / "benchmarks" / "results").glob("gpu_kernels_*.json"))
runs = [json.loads(path.read_text()) for path in recorded]
h200 = minillm.measure.hardware.DATASHEETS["h200"]
print("recorded on:", ", ".join(run["device"] for run in runs) or "no GPU yet; what follows is predicted")

# %%
lengths, roofs = [1024, 2048, 4096, 8192, 16384], {"standard (predicted)": [], "tiled (predicted)": []}
for n in lengths:
    flops, heads = 4 * n * n * 128, 4 * n * 128 * 2  # one head of 128 in 16 bits, no mask: q, k, v and the result
    for row, extra in zip(roofs.values(), (4 * n * n * 2, 0)):  # scores and weights, written and read
        row.append(flops / cost.predict(flops, heads + extra, h200, "bfloat16").seconds / 1e12)
fig, axes = plots.figure(f"Scores in memory hold an H200 to {max(roofs['standard (predicted)']):.0f} of 989 "
                         "TFLOP/s (predicted)", "tokens", "TFLOP/s, prefill, heads of 128", log="x")
for look, (name, row) in zip(plots.LOOKS, roofs.items()):
    axes.plot(lengths, row, color=look.color, linestyle=look.line, marker=look.marker, label=name)
for run, (name, look) in ((run, pair) for run in runs for pair in zip(("ours", "sdpa"), plots.LOOKS[2:])):
    rates = {n: run["results"]["cases"].get(f"prefill {n} full", {}).get(name) for n in lengths}
    axes.plot([n for n in lengths if rates[n]], [rate["tflops_per_s"] for rate in rates.values() if rate],
              color=look.color, linestyle=look.line, marker=look.marker, label=f"{name}, {run['device']}")
axes.plot([1024, 16384], [407, 487], color="#777777", marker="x", label="Triton on an H100 (published)")
axes.set_ylim(0, 1100)
legend = axes.legend(loc="upper right", bbox_to_anchor=(1, 0.88))

# %% [markdown]
# With no scores in memory bytes no longer bound prefill, arithmetic does. How near do kernels come to that roof?
# FlashAttention's first version reached 25 to 40 % of an A100's peak, the second 50 to 73 %. On an H100 the second
# reached 35 % and the third 75 % in 16 bits, 740 TFLOP/s, by overlapping the softmax with the tensor cores (Dao 2023;
# Shah et al. 2024). Triton kernels for heads of 128 without a mask were reported at 407 TFLOP/s for 1,024 tokens and
# 487 for 16,384 on an H100 (facebookexperimental/triton issue 205): that is what ours are to be held to.
#
# Decode is a matter of bytes. Attention of one step in one layer, 32 requests, by the roofline of an H200. MLA stands
# just past the ridge, the others far below it, so theirs is the time of the bytes:

# %%
contexts = [1024, 4096, 16384, 65536]
fig, axes = plots.figure("In decode a variant's time follows what it keeps (predicted, H200)",
                         "tokens of each of 32 requests", "µs of attention in one layer", log="xy")
for look, name in zip(plots.LOOKS, list(kinds)[:4]):
    costs = [cost.attention_cost(kinds[name], [1] * 32, [n] * 32) for n in contexts]
    micros = [cost.predict(part.flops, part.bytes, h200, "bfloat16").seconds * 1e6 for part in costs]
    axes.plot(contexts, micros, color=look.color, linestyle=look.line, marker=look.marker, label=name)
    print(f"{name:18}", *(f"{time:8.1f}" for time in micros), "µs (predicted)")
legend = axes.legend()

# %%
if not runs:
    print("python benchmarks/gpu_kernels.py records prefill against SDPA, and decode against splits, on a GPU")
for run in runs:
    rates = {}
    for context in (4096, 32768):
        case = run["results"]["cases"].get(f"decode 1 x {context} bf16, splits", {})
        rates[context] = {int(name.split()[0]): found["gb_per_s"] for name, found in case.items()
                          if name.endswith("splits")}
    if all(rates.values()):
        gain = max(rates[32768].values()) / rates[32768][1]
        fig, axes = plots.figure(f"Splits give one request up to {gain:.1f} times the bandwidth ({run['device']})",
                                 "splits", "GB/s, one request", log="x")
        for look, (context, of_splits) in zip(plots.LOOKS, rates.items()):
            axes.plot(list(of_splits), list(of_splits.values()), color=look.color, linestyle=look.line,
                      marker=look.marker, label=f"{context:,} tokens")
        legend = axes.legend()

# %% [markdown]
# ## Exercises and further reading
#
# | exercise | minutes | section |
# |---|---|---|
# | *Warm-up:* 4.1 to 4.6, six puzzles | 10 each | A gentle way into Triton |
# | 4.7 Query heads that share K and V | 10 | What a variant keeps |
# | 4.8 A window that slides | 10 | What a variant keeps |
# | 4.9 The online softmax | 25 | Softmax, one tile at a time |
# | 4.10 Two partial results become one | 15 | Splitting the keys |
# | 4.11 The inner step of the Triton kernel | 25 | The kernels, exact |
# | *Further:* 4.12 Where a key lies | 10 | The kernels, exact |
# | *Further:* 4.13 Attention over latents | 20 | What a variant keeps |
# | *Further:* 4.14 Bug hunt: a window with a leak | 15 | Softmax, one tile at a time |
#
# **Further reading:** *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness* (Dao et al., 2022),
# *FlashAttention-2* (Dao, 2023) and *FlashAttention-3* (Shah et al., 2024); *Online normalizer calculation for softmax*
# (Milakov and Gimelshein, 2018); *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*
# (Ainslie et al., 2023); *DeepSeek-V2* (2024), for MLA; *Efficient Streaming Language Models with Attention Sinks*
# (Xiao et al., 2023); *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations* (Tillet et
# al., 2019).
