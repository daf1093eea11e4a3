# %% [markdown]
# # 0. Meet the machine
#
# A language model turns a text into the next word, again and again. How fast it can do that is decided by two numbers
# of the machine it runs on: how many bytes it can move per second, and how many multiplications it can do per second.
# **This lesson asks: what are the two numbers of this machine, and what do they promise for one real model?**
#
# *Assumes:* Python, what a matrix product is, and what a tensor is (an array with a shape). Nothing about transformers.
# *Takes:* about 50 minutes, of which one minute is running.

# %% [markdown]
# ## A text is a list of numbers
#
# The model is SmolLM2-135M-Instruct: 135 million parameters, small enough for a laptop, built like the large ones.
# A **parameter** (or weight) is one number that training has set; a model is its parameters and the order they are
# used in. `zoo.load` reads them from the file that `minillm fetch smollm2` stored.

# %%
import torch

import minillm
from minillm import course
from minillm.measure import plots
from minillm.model import zoo

plots.style()
device = minillm.measure.best_device()
loaded = zoo.load("smollm2", dtype="float32", device=device)
model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.config
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

# %% [markdown]
# A model sees no letters. A **tokenizer** cuts the text into **tokens**, pieces of words from a fixed list, and each
# token is known by its number in that list. Common words are one token; rare ones are several.

# %%
prompt = "The capital of France is"
token_ids = tokenizer.encode(prompt)
print([tokenizer.decode([i]) for i in token_ids])
print(token_ids)
print(f"{len(tokenizer):,} tokens in the list (the vocabulary)")
print("a rare word:", [tokenizer.decode([i]) for i in tokenizer.encode("antidisestablishmentarianism")])

# %% [markdown]
# ## One token's way through the model
#
# What follows is a whole forward pass, opened up. Every shape is the model's real one. In the shapes, `T` is the number
# of tokens.
#
# **1. Embedding.** Each token id picks one row of a table. From here on a token is a vector of 576 numbers, called its
# **hidden state**. Thirty layers will add to it; nothing ever replaces it, so it is also called the *residual stream*.

# %%
from minillm.cache.base import NoCache
from minillm.model.batch import make_batch

batch = make_batch([(0, token_ids, 0)], device)
step = NoCache(model.kv_specs()).begin(batch)
with torch.inference_mode():
    hidden = model.embed(batch)  # [T, 576]
print("table: ", list(model.embed_tokens.weight.shape))
print("hidden:", list(hidden.shape))

# %%
import matplotlib.pyplot as plt

fig, axes = plots.figure("Thirty layers add to each token's vector", "", "")
axes.set(xlim=(-0.3, 10), ylim=(0, 7))
axes.axis("off")
axes.annotate("", (9.8, 1), (0.1, 1), arrowprops={"arrowstyle": "-|>", "linewidth": 3, "color": "#1b1f3b"})
axes.text(5, 0.2, "residual stream: T vectors of 576 numbers", ha="center")
boxes = {-0.2: ("token table", "T ids ->\n[T, 576]"), 2.4: ("attention", "q [T, 9, 64]\nk, v [T, 3, 64]"),
         4.9: ("MLP", "576 -> 1536\n-> 576"), 7.7: ("head", "[1, 576] ->\n[1, 49152]")}
for left, (name, shapes) in boxes.items():
    axes.add_patch(plt.Rectangle((left, 3), 2.1, 2.3, facecolor="#eeeeee", edgecolor="#1b1f3b", linewidth=1.5))
    axes.text(left + 1.05, 4.75, name, ha="center", va="center", weight="bold")
    axes.text(left + 1.05, 3.8, shapes, ha="center", va="center", fontsize=10.5)
for x, tip, label in ((0.85, 1.1, ""), (2.8, 3, "read"), (4.1, 1.1, "add"), (5.3, 3, "read"), (6.6, 1.1, "add"),
                      (8.7, 3, "")):
    axes.annotate("", (x, tip), (x, 4.1 - tip), arrowprops={"arrowstyle": "-|>", "color": "#b5432a", "linewidth": 1.8})
    axes.text(x + 0.1, 1.9, label, color="#b5432a")
axes.add_patch(plt.Rectangle((2.2, 2.7), 5.0, 2.9, fill=False, linestyle="--", edgecolor="#777777"))
caption = axes.text(4.7, 5.8, "one layer, thirty times", ha="center", color="#555555")

# %% [markdown]
# **2. Attention.** A word means little without the words before it. In each layer, each token makes three vectors by
# three matrix products: a **query** (what am I looking for?), a **key** (what do I offer?) and a **value** (what do I
# hand over?). Each is cut into **heads** of 64 numbers that look independently. Before that a **norm** scales the vector to unit size, so that no layer is handed wild numbers.
#
# Here are 9 query heads but only 3 key and value heads: three query heads share one key. Lesson 4 is about why.

# %%
layer = model.layers[0]
with torch.inference_mode():
    normed = layer.input_layernorm(hidden)  # [T, 576], scaled to unit size
    q = layer.self_attn.q_proj(normed).view(-1, config.num_heads, config.head_dim)
    k = layer.self_attn.k_proj(normed).view(-1, config.num_kv_heads, config.head_dim)
    v = layer.self_attn.v_proj(normed).view(-1, config.num_kv_heads, config.head_dim)
for name, tensor in (("query", q), ("key", k), ("value", v)):
    print(f"{name:6}", list(tensor.shape))

# %% [markdown]
# A query and a key that point the same way have a large product: that pair belongs together. **Softmax** turns a token's
# products into weights that sum to 1, and the token receives that mixture of values. Two more facts:
#
# - a token sees only itself and earlier ones (**causal**): later ones do not exist yet when it is generated;
# - keys and queries are rotated by an angle that grows with their position (**RoPE**), so that a product depends on how
#   far apart two tokens are.

# %%
from minillm.attention import reference
from minillm.model import layers

with torch.inference_mode():
    cos, sin = layers.rope_tables(model.frequencies.to(device), batch.positions, hidden.dtype)
    q, k = layers.apply_rope(q, cos, sin), layers.apply_rope(k, cos, sin)
    mixed = reference.causal_attention(q, k, v, config.scale)  # [T, 9, 64]
    attended = layer.self_attn.o_proj(mixed.flatten(1))  # [T, 576]
    after_attention = hidden + attended
print("mixture of values:", list(mixed.shape), "-> back to", list(attended.shape))

# %% [markdown]
# **3. MLP.** Attention moved information between tokens; now each token is worked on alone. Two matrix products widen
# it from 576 to 1,536 numbers; one of the results, bent by a smooth curve (the **activation**), switches the other on or off,
# number by number; a third product brings it back. Three quarters of a
# layer's parameters are here.

# %%
with torch.inference_mode():
    after_mlp = after_attention + layer.mlp(layer.post_attention_layernorm(after_attention))
    whole_layer = layer(hidden, cos, sin, step)
print("widened to", layer.mlp.up_proj.weight.shape[0], "and back to", after_mlp.shape[1])
print("the layer, opened up, equals the layer:", torch.allclose(after_mlp, whole_layer, atol=1e-4))

# %% [markdown]
# **4. The head.** After 30 such layers, the last token's hidden state is multiplied with every row of the token table.
# The result is one score for each token of the vocabulary, a **logit**. Softmax makes probabilities of them, and the
# next token is chosen among the likely ones.

# %%
with torch.inference_mode():
    final = model.run(hidden, step)  # [T, 576] through all 30 layers
    logits = model.head(final, [len(token_ids) - 1])  # [1, 49152]: only the last token's are needed
probabilities = logits[0].softmax(-1)
top = probabilities.topk(8)
words = [repr(tokenizer.decode([i])) for i in top.indices.tolist()]
print("logits:", list(logits.shape), " most likely:", words[0])

# %%
fig, axes = plots.figure(f"The model has read 'The capital of France is' and expects {words[0]}",
                         "probability of being the next token (%)", "token")
plots.bars(axes, words, {"probability": [100 * p for p in top.values.tolist()]})

# %% [markdown]
# That was one step. Append the token, run again, and a text grows. `LLM` does this loop; we shall build it in lesson 1.

# %%
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM

llm = LLM(loaded)
question = [{"role": "user", "content": "What is the capital of France?"}]
answer = llm.chat(question, SamplingParams(temperature=0, max_tokens=30))
print(answer.outputs[0].text)

# %% [markdown]
# ## Where its bytes are
#
# In float32 a parameter is 4 bytes. **To make one token, every parameter is read once**: each layer's matrices, and the
# token table, which serves as the head too. Keep this sentence; half of this course follows from it.

# %%
shape = config.shape()
q_and_o = shape.layers * 2 * shape.hidden * shape.q_size
k_and_v = shape.layers * 2 * shape.hidden * shape.kv_size
mlp = shape.layers * 3 * shape.hidden * shape.intermediate
parts = {"MLP": mlp, "query, output": q_and_o, "key, value": k_and_v, "token table and head": shape.head_params,
         "norms": shape.small_params}
for name, count in parts.items():
    print(f"{name:21} {count / 1e6:6.1f} M   {100 * count / shape.params:4.1f} %")
print(f"{'together':21} {sum(parts.values()) / 1e6:6.1f} M   {4 * shape.params / 1e6:.0f} MB in float32")

# %%
fig, axes = plots.figure("More than half of the bytes are MLP matrices", "megabytes in float32", "")
plots.bars(axes, list(parts), {"bytes": [4 * count / 1e6 for count in parts.values()]})

# %% [markdown]
# ## What this machine can move and compute
#
# **Bandwidth** is how many bytes per second the processor can read from memory. **Peak** is how many floating-point
# operations per second (FLOP/s) it can do; a multiplication and an addition are two. It depends on how a number is stored:
# float32 takes 4 bytes, bfloat16 and float16 take 2. Datasheets print both for an
# accelerator. Here they are measured: reading 512 MB that no cache holds, and multiplying large matrices.
#
# Before you run the next cell, write down a guess: how many gigabytes per second does this machine read?

# %%
guess = course.guess("0.bandwidth", None)  # put your number in place of None

# %% tags=["nbval-ignore-output"]
from minillm.measure.hardware import DATASHEETS, measure_machine, ridge

machine = measure_machine(device)
print(f"{machine.name}, {machine.threads} threads")
print(f"reads {machine.read_bandwidth / 1e9:.1f} GB/s, copies {machine.copy_bandwidth / 1e9:.1f} GB/s")
for dtype, peak in machine.peak_flops.items():
    print(f"{dtype:9} {peak / 1e9:8.0f} GFLOP/s, so {ridge(machine, dtype):6.1f} FLOP for each byte read")
assert machine.read_bandwidth > 0

# %% tags=["nbval-ignore-output"]
known = [DATASHEETS[name] for name in ("t4", "rtx4090", "a100", "h200")]
names = ["this machine", *(sheet.name for sheet in known)]
rates = [machine.read_bandwidth / 1e9, *(sheet.bandwidth / 1e9 for sheet in known)]
ratio = rates[-1] / rates[0]
fig, axes = plots.figure(f"An H200 reads {ratio:.0f} times as fast as this machine", "GB/s read (logarithmic)", "")
plots.bars(axes, names, {"bandwidth": rates})
axes.set_xscale("log")
if guess is not None:
    axes.plot([guess], [0], **plots.GUESSED)
assert len(rates) == len(names)

# %% [markdown]
# ## The roofline
#
# Put both numbers in one picture. **Arithmetic intensity** is the FLOP that a piece of work does for each byte it moves.
# Work of low intensity waits for bytes: its speed is intensity times bandwidth, the slope. Work of high intensity waits
# for arithmetic: the flat roof. They meet at the **ridge**.
#
# Making one token in float32 does 2 FLOP for each parameter of 4 bytes: an intensity of 0.5. In 16 bits it is 1.

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure("One token at a time stands far left of every ridge", "arithmetic intensity (FLOP per byte)",
                         "attainable FLOP/s")
plots.roofline(axes, machine, "float32", plots.LOOKS[0])
for look, sheet in zip(plots.LOOKS[1:], (DATASHEETS["rtx4090"], DATASHEETS["h200"])):
    plots.roofline(axes, sheet, "bfloat16", look)
axes.set_ylim(axes.get_ylim()[0] / 1000)  # room for the legend
axes.axvline(0.5, color="#777777", linestyle=":", label="one token, float32")
axes.legend(loc="lower right", fontsize=9.5)
assert ridge(machine, "float32") > 0.5

# %% [markdown]
# ## The first prediction
#
# If every parameter is read once for each token, then this machine cannot make tokens faster than its bandwidth divided
# by the bytes of the model. That is a promise from two numbers, before running anything. Your guess first, in tokens per
# second:

# %%
guess = course.guess("0.tokens_per_second", None)

# %% tags=["nbval-ignore-output"]
bytes_per_token = 4 * shape.params
predicted = machine.bandwidth / bytes_per_token
runs = [llm.chat(question, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)) for _ in range(4)]
rates = sorted(1 / run.times.tpot for run in runs[1:])
measured = rates[len(rates) // 2]
print(f"{machine.name}: predicted at most {predicted:.1f} tokens/s")
print(f"measured {measured:.1f} tokens/s (between {rates[0]:.1f} and {rates[-1]:.1f}), "
      f"{100 * measured / predicted:.0f} % of it")
assert all(run.outputs[0].token_ids == runs[0].outputs[0].token_ids for run in runs)

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"This machine reaches {100 * measured / predicted:.0f} % of what its bandwidth allows",
                         "tokens per second", "")
labels, bars = ["predicted", "measured"], [predicted, measured]
if guess is not None:
    labels, bars = ["your guess", *labels], [guess, *bars]
plots.bars(axes, labels, {"rate": bars})
assert len(labels) == len(bars)

# %% [markdown]
# **Why not 100 %?** Three things decide. Between two matrix products, Python and torch start the next operation, some two
# thousand of them for a token, and the memory idles. A product with one token is short, and reads its matrix more slowly
# than one long read would. And a large cache can hold part of the model, which makes reading faster than memory: that can
# even push the ratio above 100 %. Lesson 1 measures each of them.
#
# **Where it loses.** The prediction says nothing about the first token of a long prompt. That one waits for arithmetic,
# not for bytes, and is lesson 1's other half.
#
# **On a big GPU** (predicted, not measured): an H200 reads 4,800 GB/s, so an 8-billion-parameter model in 16 bits makes
# at most 300 tokens per second for one user, and this small one in 16 bits at most 17,800. For the second
# figure a step would have to start its few hundred **kernels** (programs that run on the GPU) within 56 microseconds.

# %% [markdown]
# ## The first exercise, together
#
# Each lesson has exercises: functions of the package that you write yourself, and that then serve the model. Yours lie in
# `mine/exercises/`; open `step0_meet_the_machine.py` beside this notebook. The first is the roofline itself:
#
# > *Given the FLOPs and the bytes of a piece of work, and a machine's peak and bandwidth, how many seconds does it take
# > at best?*
#
# Arithmetic and reading happen at the same time, so the answer is not their sum. Compute the seconds that each would take
# alone, then return the one that decides. It is three lines. Then run the check, here or in a terminal:
#
#     minillm check 0.1        did I get it?
#     minillm hint 0.1         one more hint each time
#     minillm progress         what is done, what is next

# %%
course.check("0.1")

# %% [markdown]
# ## Exercises and further reading
#
# **Do now:** 0.1, The time a roofline allows (5 minutes).
#
# **Further reading:** *Roofline: An Insightful Visual Performance Model* (Williams, Waterman, Patterson, 2009);
# *Attention Is All You Need* (Vaswani et al., 2017); *RoFormer* (Su et al., 2021), for rotary positions;
# *STREAM* (McCalpin, 1995), for measuring bandwidth.
