# %% [markdown]
# # 2. KV cache, paging and prefix caching
#
# A cache of keys and values makes decoding affordable. Then it becomes the problem: it fills the memory that decides how
# many users a machine can serve. **This lesson asks: what does each token leave behind, how much of the memory set
# aside for it is wasted, and what do blocks, sharing and fewer bits win back?**
#
# *Assumes:* lesson 1 (prefill, decode, TTFT, the cached loop). *Takes:* about 70 minutes of reading and running, and as
# much again for the core exercises.
# *You will write:* bytes per token, the block allocator, copy-on-write, slot mapping, and the lookup of a prefix.

# %%
import random

import torch

import minillm
from minillm import course
from minillm.cache import accounting, build
from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.sampling import SamplingParams
from minillm.llm import LLM
from minillm.measure import plots, timing, workload
from minillm.measure.shape import KNOWN_SHAPES
from minillm.model import zoo
from minillm.model.batch import make_batch

plots.style()
device = minillm.measure.best_device()
loaded = zoo.load("smollm2", dtype="float32" if device.type == "cpu" else "bfloat16", device=device)
model, tokenizer, specs = loaded.model, loaded.tokenizer, loaded.model.kv_specs()
here = minillm.measure.hardware.device_name(device)

# %% [markdown]
# ## What recomputing costs
#
# Keys and values of a token depend on the tokens before it, never on those after it. So they can be computed once and
# kept. Without them, the n-th token costs a pass over n tokens, and a whole answer a number of token passes that grows
# with n². With them each costs one pass, and the answer n. Counting:

# %%
for n in (64, 256, 1024):
    print(f"{n:5} tokens: {n * (n + 1) // 2:7,} token passes without a cache, {n:5,} with one")

# %% [markdown]
# Passes are not seconds. What does *one more token* cost here, after 32 to 384 of them?

# %% tags=["nbval-ignore-output"]
contexts = [32, 96, 192, 384] if device.type == "cpu" else [128, 512, 2048, 4096]
stock = torch.randint(1000, 40000, (8192,), generator=torch.Generator().manual_seed(0)).tolist()
without, kept = [], []
cache = ContiguousKVCache(specs, 1, contexts[-1], model.dtype, device)
for n in contexts:
    whole = make_batch([(0, stock[:n], 0)], device)
    without.append(timing.time_call(lambda b=whole: model(b, NoCache(specs)), device, warmup=1, repeats=1).median)
    model(make_batch([(0, stock[: n - 1], 0)], device), cache)

    def one(n: int = n) -> None:
        model(make_batch([(0, [stock[n - 1]], n - 1)], device), cache)
        cache.truncate(0, n - 1)

    kept.append(timing.time_call(one, device, warmup=1, repeats=5).median)
    cache.free(0)
print(f"{here}: after {contexts[-1]} tokens, {without[-1] * 1e3:.0f} ms without and {kept[-1] * 1e3:.0f} ms with a cache")
assert len(kept) == len(contexts)

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"After {contexts[-1]} tokens the next one takes {without[-1] / kept[-1]:.0f} times as long "
                         "without a cache", "tokens so far", "ms for one more token", log="xy")
axes.plot(contexts, [1e3 * t for t in without], **plots.MEASURED, label="recompute: grows with n, so n² in all")
axes.plot(contexts, [1e3 * t for t in kept], color="#b5432a", marker="s", linestyle="--", label="cached: flat, n in all")
axes.legend()
assert without[-1] > 0

# %% [markdown]
# ## What a token leaves behind
#
# Each layer keeps one key and one value for each K/V head: 2 · layers · K/V heads · head size numbers. Models differ in
# this far more than in their size. Llama-3-8B has four times fewer K/V heads than Llama-2-7B (grouped-query attention),
# and DeepSeek-V2 keeps one compressed vector a layer instead (MLA); both are subjects of lesson 4.

# %%
names = ["smollm2-135m", "llama-2-7b", "llama-3-8b", "llama-3-70b"]
per_token = {name: KNOWN_SHAPES[name].kv_bytes_per_token(2) for name in names}
per_token["opt-13b"] = 2 * 40 * 5120 * 2  # 40 layers, as many K/V heads as query heads: 5,120 values
per_token["deepseek-v2"] = 60 * (512 + 64) * 2  # 60 layers, one latent of 512 and a key of 64 for positions
for name, size in per_token.items():
    print(f"{name:14} {size / 1024:6.1f} KiB a token, {size * 4096 / 2**30:5.2f} GiB for 4,096 tokens, in 16 bits")

# %% [markdown]
# *Exercise 2.1* is this number. Now take a GPU, subtract the weights and a tenth for everything else, and divide. Guess
# first: how many users with 4,096 tokens each fit beside Llama-2-7B on a card of 24 GB?

# %%
guess = course.guess("2.requests24", None)  # your number in place of None

# %%
sizes, fits = (24, 80, 141), {}
for name in ("llama-2-7b", "llama-3-8b"):
    free = [gb * 1e9 * 0.9 - 2 * KNOWN_SHAPES[name].params for gb in sizes]
    fits[name] = [int(room // (per_token[name] * 4096)) for room in free]
    print(f"{name}: " + ", ".join(f"{n} on {gb} GB" for gb, n in zip(sizes, fits[name])))

# %%
fig, axes = plots.figure("A 24 GB card serves 3 users of Llama-2-7B, whatever its speed", "memory of the GPU (GB)",
                         "requests of 4,096 tokens that fit")
for place, (look, (name, counts)) in enumerate(zip(plots.LOOKS[::3], fits.items())):
    spots = [i + 0.4 * place - 0.2 for i in range(3)]
    shown = axes.bar(spots, counts, 0.38, color=look.color, hatch=look.hatch, edgecolor="white", label=name)
    axes.bar_label(shown)
if guess is not None:
    axes.plot([-0.2], [guess], **plots.GUESSED, label="your guess")
axes.set_xticks(range(3), [str(gb) for gb in sizes])
legend = axes.legend(loc="upper left")

# %% [markdown]
# Decoding is bound by memory traffic that a larger batch would share. So each user who does not fit costs throughput. The
# KV cache is the **memory wall** of serving.
#
# ## Reserved and never used
#
# How long will an answer be? Nobody knows when it starts. The naive server reserves the longest possible sequence for
# everybody, in one contiguous piece. Real lengths have a long tail: most are short, a few very long. Let 600 requests
# come, median 256 tokens, σ of the logarithm 1, at most 2,048; half of each is prompt. The memory holds 16 × 2,048.

# %%
lengths = workload.lognormal_lengths(600, median=256, sigma=1.0, maximum=2048)
trace = [((n + 1) // 2, n // 2) for n in lengths]
capacity = 16 * 2048
print(f"median {sorted(lengths)[300]}, mean {sum(lengths) / 600:.0f}, longest {max(lengths)} tokens")


def power_of_two(prompt: int, final: int) -> int:
    return 1 << (final - 1).bit_length()


uses = {"the longest (naive)": accounting.simulate(accounting.Contiguous(capacity, lambda p, f: 2048), trace),
        "next power of two": accounting.simulate(accounting.Contiguous(capacity, power_of_two), trace),
        "exactly (an oracle)": accounting.simulate(accounting.Contiguous(capacity, lambda p, f: f), trace),
        "blocks of 16": accounting.simulate(accounting.Paged(capacity, 16), trace)}
for name, use in uses.items():
    print(f"{name:20} waste {use.waste:6.1%}   requests at once {use.concurrency:5.1f}")

# %%
parts = {"holds a token": [u.written for u in uses.values()], "reserved, empty": [u.reserved for u in uses.values()],
         "in useless pieces": [u.stranded for u in uses.values()], "free": [u.spare for u in uses.values()]}
naive, blocks16 = uses["the longest (naive)"], uses["blocks of 16"]
fig, axes = plots.figure(f"Naive reservation wastes {naive.waste:.0%} of KV memory, blocks of 16 waste "
                         f"{blocks16.waste:.1%}", "share of KV memory, while somebody waits", "")
plots.bars(axes, list(uses), parts)
axes.set_ylim(4.6, -0.5)
legend = axes.legend(loc="lower center", ncols=2, fontsize=9.5)

# %% [markdown]
# Two wastes are told apart. **Internal fragmentation** is reserved and not (yet) used. **External fragmentation** is free,
# but in pieces too small for the next request. Even an oracle that knows every length suffers: it reserves on the first
# step what only the last step fills, and its free memory falls into pieces. The authors of vLLM found that existing
# systems used 20 to 38 % of their KV memory (Kwon et al., 2023).
#
# ## Memory in blocks
#
# Operating systems met this problem in the 1960s and answered with **pages**. PagedAttention does the same: memory is cut
# into **blocks** of, say, 16 tokens. A sequence holds a list of blocks, its **block table**, and takes one more when the
# last is full. Nothing is reserved, no piece is too small. At most 15 slots of a sequence are empty. Token i lies in
# block `table[i // 16]` at offset `i % 16`:

# %%
from minillm.cache.blocks import BlockPool
from minillm.cache.paged import gather_blocks, slot_mapping
from minillm.cache.tables import BlockTables

tables = BlockTables(BlockPool(num_blocks=8, block_size=4))
for step in range(3):  # two sequences that grow in turn: their blocks come to lie between one another
    tables.reserve({0: 4 * step + 4, 1: 4 * step + 2})
print("block tables:", tables.tables)
print("slots of tokens 2 … 9 of sequence 0:", slot_mapping(tables.tables[0], 2, 10, block_size=4))
memory = torch.arange(32).view(8, 4, 1, 1)  # [blocks, block_size, heads, head size]: each slot holds its own number
print("gathered:", gather_blocks(memory, torch.tensor(tables.tables[0]), 10).flatten().tolist())

# %% [markdown]
# *Exercise 2.4* is `slot_mapping` and `gather_blocks`; *exercise 2.2* is the allocator. Its whole state is a stack of free
# blocks and a count of holders for each, so it costs the same with a million blocks as with ten. How large should a block
# be? Small ones waste less; each costs a table entry and, on a GPU, a jump in memory.

# %%
block_sizes = [1, 8, 16, 32, 64, 128, 256]
swept = [accounting.simulate(accounting.Paged(capacity, size), trace) for size in block_sizes]
for size, use in zip(block_sizes, swept):
    print(f"block of {size:3}: waste {use.waste:6.2%}, {use.concurrency:4.1f} requests at once")
print("at least 2.5 times as many at once as naive:", blocks16.concurrency >= 2.5 * naive.concurrency)

# %%
fig, axes = plots.figure("Waste grows with the block: half a block for each sequence", "tokens in a block",
                         "waste (% of KV memory)", log="x")
axes.plot(block_sizes, [100 * use.waste for use in swept], **plots.MEASURED)
axes.axhline(4, color="#777777", linestyle=":")
note = axes.text(1, 4.4, "4 %: the figure of the vLLM authors", color="#555555")

# %% [markdown]
# Paging has a price: attention must read through the table. In plain torch, K and V are first gathered into order, one
# extra copy a layer. (The kernel of lesson 4 reads blocks where they lie.) A batch of 8 with 512 cached tokens each:

# %% tags=["nbval-ignore-output"]
def decoder(cache, rows: int = 8, context: int = 512):
    for seq in range(rows):  # as if the tokens had been written; the time does not depend on what they are
        cache.begin(make_batch([(seq, stock[:context], 0)], device))
    batch = make_batch([(seq, [42], context) for seq in range(rows)], device)

    def step() -> None:
        model(batch, cache)
        for seq in range(rows):
            cache.truncate(seq, context)

    return step


flat = ContiguousKVCache(specs, 8, 576, model.dtype, device)
for tensor in (*flat.k, *flat.v):
    tensor.fill_(0.01)
paged = build.paged_cache(specs, 8 * 40, 16, dtype=model.dtype, device=device)
for tensor in paged.store:
    tensor.fill_(0.01)
steps = {"contiguous": decoder(flat), "paged": decoder(paged)}
assert paged.length(7) == flat.length(7) == 512

# %% tags=["nbval-ignore-output"]
rounds = [{name: timing.time_call(step, device, warmup=0, repeats=1).median for name, step in steps.items()}
          for _ in range(8)][1:]  # the first warms up
middle = {name: sorted(r[name] for r in rounds)[3] for name in steps}
price = sorted(r["paged"] / r["contiguous"] for r in rounds)[3]
print(f"{here}: " + ", ".join(f"{n} {t * 1e3:.0f} ms" for n, t in middle.items()) + f", ratio {price:.2f} a decode step")
assert price > 0

# %% [markdown]
# ## One prompt, several answers
#
# Blocks have a second use. Ask for four answers to one prompt (`n=4`), and all four begin with the same K and V. A
# **fork** copies the table, not the memory, and adds one to each block's count of holders. When an answer then writes into
# a block that others hold, it first gets a copy of that one block: **copy-on-write**. The last holder needs no copy.

# %%
tables = BlockTables(BlockPool(num_blocks=12, block_size=4))
tables.reserve({0: 10})
tables.lengths[0] = 10
tables.fork(0, 1)
before = {f"answer {seq}": list(table) for seq, table in tables.tables.items()}
copies = tables.reserve({0: 13, 1: 13})  # each answer writes tokens 10, 11 and 12
after = {f"answer {seq}": list(table) for seq, table in tables.tables.items()}
print("copies to make, (from, to):", copies)

# %%
import matplotlib.pyplot as plt

fig, both = plt.subplots(2, 1, figsize=(6.4, 5.0))
both_shared = set(before["answer 0"]), set(after["answer 0"]) & set(after["answer 1"])
titles = "After the fork both tables point to the same blocks", "A write copies the last block only: the others stay shared"
for axes, shown, shared, title in zip(both, (before, after), both_shared, titles):
    plots.finish(axes, title, "", "")
    plots.block_tables(axes, shown, shared)

# %% [markdown]
# *Exercise 2.3* is `make_writable`, the few lines that decide this. Let the model give four answers, and count blocks.

# %%
llm = LLM(loaded, max_model_len=1024, max_num_seqs=8)
pool = llm.cache.pool
prompt = llm.render([{"role": "user", "content": "Suggest a name for a small boat. " + "Make it short. " * 30}])
fewest = []
watched = pool.allocate


def counted(count: int = 1) -> list[int]:
    """Allocate, and note how few blocks are left."""
    blocks = watched(count)
    fewest.append(pool.available)
    return blocks


pool.allocate = counted
(output,) = llm.generate(prompt, SamplingParams(n=4, temperature=0.9, seed=7, max_tokens=24, ignore_eos=True))
pool.allocate = watched
tokens = len(output.prompt_token_ids)
used, alone = pool.num_blocks - min(fewest), 4 * pool.blocks_for(tokens + 23)
print(f"{tokens} prompt tokens, 4 answers of 24: {used} blocks together, {alone} if nothing were shared")
print("different answers:", len({answer.text for answer in output.outputs}))

# %% [markdown]
# Nine full blocks of the prompt are held once, and each answer has three of its own, which makes 21. One fewer is held:
# two answers begin with the same token, which fills the prompt's last block with the same text, and the prefix index
# gives both the same block.
#
# Beam search uses the same fork: at each step the best few continuations survive, and one that survives twice is forked.
# `LLM.beam_search` does it with no copy of a full block, ever.
#
# ## The same beginning twice
#
# A third use. Every request of a chat service begins with the same system prompt; each turn of a conversation begins with
# all earlier turns. Their K and V are in some blocks already. **Prefix caching** finds them again.
#
# A block's K and V depend on its own tokens *and all before it*. So its name is a chain: the hash of block i covers the
# hash of block i-1 and the block's tokens. Looking up a prompt is a walk along its full blocks until one is unknown. Three
# rules keep it correct: token ids are compared on a hit (hashes may collide); what else changes K and V, such as an
# adapter, goes into the hash; and the last token is always computed, for its logits choose the next one.

# %%
from minillm.cache.prefix import hash_block

one, two = hash_block(b"", [1, 2, 3, 4], ""), hash_block(b"", [9, 2, 3, 4], "")
print("same tokens, same beginning: ", hash_block(one, [5, 6, 7, 8], "") == hash_block(one, [5, 6, 7, 8], ""))
print("same tokens, other beginning:", hash_block(one, [5, 6, 7, 8], "") == hash_block(two, [5, 6, 7, 8], ""))
print("same tokens, other tenant:   ", hash_block(b"", [1, 2, 3, 4], "b") == one)

# %% [markdown]
# *Exercise 2.5* is the lookup, `HashIndex.match`; 2.8 is a bug hunt in one that forgot the chain. A block that nobody holds
# any more stays as it is, **idle**, until its space is needed; then the one unused for longest goes first.
#
# What does it bring? A prompt of 256 tokens of which 0, 25, 50, 75 or 99 % were seen before. Your guess: how many times
# shorter is TTFT when three quarters are known?

# %%
guess = course.guess("2.speedup75", None)  # times

# %% tags=["nbval-ignore-output"]
off = LLM(loaded, max_model_len=1024, max_num_seqs=2, enable_prefix_caching=False)
llm = LLM(loaded, max_model_len=1024, max_num_seqs=2)
only_first, rng = SamplingParams(max_tokens=1, temperature=0), random.Random(1)


def first_token(engine: LLM, ids: list[int]) -> float:
    return engine.generate(ids, only_first)[0].times.ttft


def random_ids(count: int = 256) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(count)]


ttfts = {"off": [], 0: [], 25: [], 50: [], 75: [], 99: []}
for turn in range(6):  # nothing known: on and off in turn, each first every other time; the first round warms up
    for name, engine in (("off", off), (0, llm))[:: 1 if turn % 2 else -1]:
        ttfts[name].append(first_token(engine, random_ids()))
for share in (25, 50, 75, 99) * 2:
    ids = random_ids()
    first_token(llm, ids[: 256 * share // 100] + [7])
    ttfts[share].append(first_token(llm, ids))
middle = {share: sorted(times[-5:])[len(times[-5:]) // 2] for share, times in ttfts.items()}
print(f"{here}: " + ", ".join(f"{name} {'' if name == 'off' else '% '}{t * 1e3:.0f} ms" for name, t in middle.items()))
assert llm.cache.tables.stats.hit_tokens == 2 * sum(256 * share // 100 // 16 * 16 for share in (25, 50, 75, 99))

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"With three quarters known, TTFT is {middle['off'] / middle[75]:.1f} times shorter, "
                         f"with nothing known {middle[0] / middle['off']:.2f} times as long",
                         "share of the prompt seen before (%)", "TTFT (ms)")
shares = [share for share in middle if share != "off"]
axes.plot(shares, [middle[share] * 1e3 for share in shares], **plots.MEASURED, label="prefix caching on")
axes.axhline(middle["off"] * 1e3, **plots.PREDICTED, label="prefix caching off")
if guess is not None:
    axes.plot([75], [middle["off"] * 1e3 / guess], **plots.GUESSED, label="your guess")
axes.set_ylim(bottom=0)
axes.legend()
assert middle["off"] > 0

# %% [markdown]
# The right end is what matters for a long shared document: 1,024 tokens known, 32 new.

# %% tags=["nbval-ignore-output"]
long = LLM(loaded, max_model_len=2048, max_num_seqs=1)
document, question = stock[:1024], [stock[2000:2032], stock[2100:2132]]
greedy = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
cold = long.generate(document + question[0], greedy)[0]
warm = long.generate(document + question[1], greedy)[0]
fresh = LLM(loaded, max_model_len=2048, max_num_seqs=1, enable_prefix_caching=False).generate(
    document + question[1], greedy)[0]
faster = fresh.times.ttft / warm.times.ttft
print(f"{here}: {fresh.times.ttft * 1e3:.0f} ms without, {warm.times.ttft * 1e3:.0f} ms with: {faster:.0f} times shorter")
assert warm.num_cached_tokens == 1024 and warm.outputs[0].token_ids == fresh.outputs[0].token_ids

# %% [markdown]
# 33 times fewer tokens, but not 33 times faster. The weights have to be read once for 32 tokens as for 1,056, and products
# with 32 rows run at a lower rate than those with a thousand: left of lesson 1's knee. A longer known part wins more.
#
# Hashes of full blocks are one way (vLLM's). A **radix tree** of texts is another (SGLang's): it finds the longest common
# beginning to the token, and evicts leaves first. Both stand behind one interface here. Two workloads tell them apart, on
# the tables alone, with no model. *RAG:* 200 questions, each after one of 12 documents of about 300 tokens. *Chat:* 20
# conversations of 8 turns, in turn; each turn repeats all before it.

# %%
rng = random.Random(2)


def words(count: int) -> list[int]:
    return [rng.randrange(40000) for _ in range(count)]


documents = [words(rng.randrange(200, 400)) for _ in range(12)]
rag = [documents[rng.randrange(12)] + words(30) for _ in range(200)]
chats, talk = [], [words(40) for _ in range(20)]
for _ in range(8):
    for seq in range(20):
        talk[seq] = talk[seq] + words(25)
        chats.append(list(talk[seq]))
print(f"RAG: {len(rag)} prompts, {sum(map(len, rag)):,} tokens; chat: {len(chats)} prompts, {sum(map(len, chats)):,}")

# %%
from minillm.cache import prefix, radix


def replay(prompts: list[list[int]], index, blocks: int):
    """Hits when each prompt is opened, filled, remembered and closed in turn."""
    pool = BlockPool(blocks, 16)
    tables = BlockTables(pool, index(pool))
    for seq, ids in enumerate(prompts):
        tables.start(seq, ids)
        tables.reserve({seq: len(ids)})
        tables.lengths[seq] = len(ids)
        tables.register(seq, ids, closing=True)
        tables.free(seq)
    return tables


for name, prompts in (("RAG", rag), ("chat", chats)):
    for blocks in (4000, 200):
        rates = [replay(prompts, index, blocks).stats.hit_rate for index in (prefix.HashIndex, radix.RadixIndex)]
        print(f"{name:5} {blocks:5} blocks: hit rate {rates[0]:.1%} by hash, {rates[1]:.1%} by radix tree")

# %% tags=["nbval-ignore-output"]
for index in (prefix.HashIndex, radix.RadixIndex):
    tables = replay(chats, index, 4000)
    tokens = 16 * len(tables.pool.cached)
    seconds = timing.time_call(lambda i=tables.index: [i.match(ids) for ids in chats], torch.device("cpu")).median
    print(f"{index.__name__:11} {tables.index.metadata_bytes() / tokens:5.1f} bytes of metadata a cached token, "
          f"{seconds / len(chats) * 1e6:4.0f} us a lookup ({here})")
assert tables.stats.hit_tokens > 0

# %% [markdown]
# With room for everything the tree gains the partial blocks, up to 15 tokens a prompt. With 200 blocks it is behind: the
# partial blocks that it keeps push out full ones. What is evicted then matters more than how it is found. Further: *exercise 2.6* is the tree's `walk` and `split`; `LLM(..., prefix_index="radix")` serves with it.

# %%
by_tree = LLM(loaded, max_model_len=256, max_num_seqs=1, prefix_index="radix")
by_hash = LLM(loaded, max_model_len=256, max_num_seqs=1)
for name, engine in (("hash", by_hash), ("radix", by_tree)):
    engine.generate(stock[:100], SamplingParams(max_tokens=1, temperature=0))
    again = engine.generate(stock[:60] + stock[200:240], SamplingParams(max_tokens=1, temperature=0))[0]
    print(f"{name}: 60 of 100 tokens are known, {again.num_cached_tokens} are reused")

# %% [markdown]
# ## Fewer bytes for each token
#
# The fourth answer is to store less. A group of values shares one **scale**: x ≈ code · scale. INT8 codes run from -127 to
# 127; FP8 (E4M3) keeps 3 bits of mantissa; INT4 has 16 codes. Here a group is one head of one block. *Further: exercise
# 2.7.* What does it do to the text the model predicts? Perplexity on prose of Python's own documentation:

# %% tags=["nbval-ignore-output"]
from pydoc_data.topics import topics

ids = tokenizer.encode("\n".join(topics[name] for name in sorted(topics)))[:256]


def perplexity(kv_dtype: str) -> float:
    """Of 256 tokens, read in chunks of 64: later ones attend to the codes of earlier ones."""
    cache, losses = build.paged_cache(specs, 40, 16, kv_dtype, model.dtype, device), []
    for start in range(0, 256, 64):
        batch = make_batch([(0, ids[start : start + 64], start)], device)
        with torch.inference_mode():
            logits = model.head(model.run(model.embed(batch), cache.begin(batch)), list(range(64)))
        known = torch.tensor(ids[start + 1 : start + 65], device=device)
        losses.append(torch.nn.functional.cross_entropy(logits.float()[: len(known)], known, reduction="sum"))
    return float(torch.exp(sum(losses) / 255))


quality = {name: perplexity(name) for name in build.KV_DTYPES}
print(f"{here}: " + ", ".join(f"{name} {value:.2f}" for name, value in quality.items()))
assert set(quality) == set(build.KV_DTYPES)

# %%
in16 = {name: build.block_bytes(specs, 16, name, torch.bfloat16) / 16 for name in build.KV_DTYPES}
for name, size in in16.items():
    print(f"{name:10} {size / 1024:5.2f} KiB a token, where 16 bits take {in16['auto'] / 1024}: "
          f"{in16['auto'] / size:4.2f} times the tokens")
small = LLM(loaded, kv_cache_dtype="int8", kv_cache_memory_bytes=2**25, max_model_len=512)
known = LLM(loaded, kv_cache_memory_bytes=2**25, max_model_len=512)
print(f"in 32 MiB: {known.cache.pool.num_blocks} blocks as they are, {small.cache.pool.num_blocks} in INT8")
print(small.generate("The capital of France is", SamplingParams(max_tokens=1, temperature=0))[0].outputs[0].text)

# %% tags=["nbval-ignore-output"]
fig, axes = plots.figure(f"INT8 costs {quality['int8'] / quality['auto'] - 1:.1%} of perplexity; plain INT4 "
                         f"{quality['int4'] / quality['auto'] - 1:.0%}, with better groups "
                         f"{quality['int4-kivi'] / quality['auto'] - 1:.0%}", "KiB a token (16-bit base)", "perplexity")
for name, value in quality.items():
    axes.plot([in16[name] / 1024], [value], marker="o", color="#1b1f3b")
    axes.annotate({"auto": "16 or 32 bits"}.get(name, name), (in16[name] / 1024, value), xytext=(5, 6),
                  textcoords="offset points")
axes.set_xlim(0, 28)
axes.margins(y=0.15)
assert len(quality) == 5

# %% [markdown]
# Why is plain INT4 so bad? A few **channels** of K are far larger than the rest, in every token, and set the scale for all.
# Give each channel of K its own scale and each token of V (`int4-kivi`, after Liu et al., 2024), and most of the loss is
# gone. On three windows of 1,024 tokens (`python benchmarks/kv_cache.py`, recorded in
# `benchmarks/results/kv_cache_amd-epyc.json`) perplexity is 9.71 in float32, 9.71 in INT8, 9.86 in FP8, 13.80 in plain INT4
# and 9.88 with the better groups. The cause is visible in the numbers themselves:

# %%
exact = build.paged_cache(specs, 16, 16, "auto", model.dtype, device)
model(make_batch([(0, ids, 0)], device), exact)
peaks = {}
for name, store in zip("KV", exact.store):  # [layers, blocks, block_size, H_kv, D]
    largest = store.float().abs().amax((1, 2)).cpu()  # [layers, H_kv, D], over all tokens
    peaks[name] = largest / largest.median(-1, keepdim=True).values
    many = (peaks[name].amax(-1) > 3).float().mean() > 0.5
    print(f"{name}: in most heads the largest channel is over 3 times the median one: {bool(many)}")

# %%
fig, axes = plots.figure("A few channels of K are far larger than the others; those of V are alike",
                         "channel of a head, sorted by size", "largest value / that of the median")
for look, (name, ratios) in zip(plots.LOOKS, peaks.items()):
    axes.plot(ratios.sort(descending=True).values.mean((0, 1)), color=look.color, linestyle=look.line,
              label=f"{name}, mean over all heads")
legend = axes.legend()

# %% [markdown]
# ## A window forgets
#
# Some models (Mistral-7B was one) let each token look at the last W tokens only. Then older K and V are of no use, and a
# **ring** of W slots is enough: the token at position p lies in slot p mod W, over the one that just left the window.

# %%
from minillm.cache.ring import RingKVCache
from minillm.model.config import KVSpec

window = [KVSpec(heads=2, k_dim=8, v_dim=8, window=6, scale=0.35)]
generator = torch.Generator().manual_seed(0)
ring, full = RingKVCache(window, 1, slack=0), ContiguousKVCache(window, 1, 64)
worst, start = 0.0, 0
for chunk in (9, 1, 1, 13, 1, 7):  # chunks longer than the window too
    q, k, v = (torch.randn(chunk, heads, 8, generator=generator) for heads in (4, 2, 2))
    batch = make_batch([(0, [0] * chunk, start)])
    outputs = [cache.attend(0, q, k, v, cache.begin(batch)) for cache in (ring, full)]
    worst, start = max(worst, float((outputs[0] - outputs[1]).abs().max())), start + chunk
print(f"{start} tokens through a ring of 6 slots, the same as a full cache with a window mask: {worst < 1e-5}")

# %%
mistral = KNOWN_SHAPES["mistral-7b"]
texts = [2**n for n in range(8, 16)]
fig, axes = plots.figure("Past its window of 4,096 tokens, Mistral-7B's cache stops growing", "tokens of text",
                         "GiB of K and V, 16 bits", log="x")
for look, name, held in zip(plots.LOOKS, ("everything kept", "ring of 4,096 slots"), (texts, [4096] * len(texts))):
    axes.plot(texts, [n * mistral.kv_bytes_per_token(2) / 2**30 for n in held], color=look.color, linestyle=look.line,
              marker=look.marker, label=name)
legend = axes.legend()

# %% [markdown]
# For short texts the ring is the larger of the two: it is reserved whole. Going back is limited too. A token that was
# overwritten cannot be looked at again, so a ring needs some slack for lesson 6, where guesses are taken back.
#
# ## Where it loses
#
# Nothing here is free. Paging costs a gather in torch, as measured above. Prefix caching with nothing to find still hashes
# every block. The first version in vLLM served 9.35 requests a second of ShareGPT traffic before the change and 8.55 with
# it on (vLLM pull request 2762): that traffic shared too little. And fewer
# bytes are not fewer milliseconds: without a kernel that reads codes, each step decodes the whole cache first.

# %% tags=["nbval-ignore-output"]
steps = {"contiguous": steps["contiguous"], "paged": steps["paged"]}
for name in ("int8", "fp8", "int4-kivi"):
    coded = build.paged_cache(specs, 8 * 40, 16, name, model.dtype, device)
    for tensor in coded.store:
        tensor.zero_()
    steps[name] = decoder(coded)
rounds = [{name: timing.time_call(step, device, warmup=0, repeats=1).median for name, step in steps.items()}
          for _ in range(4)][1:]
middle = {name: sorted(r[name] for r in rounds)[1] * 1e3 for name in steps}
print(f"{here}: " + ", ".join(f"{name} {t:.0f} ms" for name, t in middle.items()))
assert len(middle) == 5

# %% tags=["nbval-ignore-output"]
slowest = max(middle, key=middle.get)
fig, axes = plots.figure(f"In plain torch fewer bits cost time: {slowest} takes {middle[slowest] / middle['paged']:.1f} "
                         "times as long as paged", "ms for a decode step of 8 rows, 512 tokens cached each", "")
plots.bars(axes, list(middle), {"decode step": list(middle.values())})
assert middle["paged"] > 0

# %% [markdown]
# ## On a big GPU
#
# No GPU has run this lesson yet. From arithmetic alone (*predicted*): Llama-3-8B on an H200, contexts of 8,192 tokens of
# which requests really hold 2,048.

# %%
from minillm.measure.hardware import DATASHEETS
from minillm.measure.plan import plan

planned = plan(KNOWN_SHAPES["llama-3-8b"], DATASHEETS["h200"], context=8192, mean_tokens=2048)
for row in planned.capacities:
    print(f"{row.kept_as:12} {row.contiguous:4} requests reserved whole, {row.paged:5} in blocks (predicted)")

# %% [markdown]
# The command `minillm plan` prints this table for any model and card.
#
# ## Exercises and further reading
#
# | exercise | minutes | section |
# |---|---|---|
# | 2.1 Bytes that one token leaves behind | 5 | What a token leaves behind |
# | 2.2 A pool of blocks | 25 | Memory in blocks |
# | 2.3 Copy on write | 20 | One prompt, several answers |
# | 2.4 From tokens to slots and back | 15 | Memory in blocks |
# | 2.5 The longest known beginning | 20 | The same beginning twice |
# | *Further:* 2.6 a tree of texts, 2.8 a bug hunt | 25, 15 | The same beginning twice |
# | *Further:* 2.7 KV in eight and in four bits | 20 | Fewer bytes for each token |
#
# **Further reading:** *Efficient Memory Management for Large Language Model Serving with PagedAttention* (Kwon et al.,
# 2023); *SGLang: Efficient Execution of Structured Language Model Programs* (Zheng et al., 2024), for the radix tree;
# *KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache* (Liu et al., 2024); *Mistral 7B* (Jiang et al., 2023),
# for the rolling cache.
