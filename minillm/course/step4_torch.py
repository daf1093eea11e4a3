"""Step 4 in torch: shared heads, windows, the online softmax and the merge of partial results; latent attention."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Target

VARIANTS, FLASH = "minillm.attention.variants", "minillm.attention.flash"
SDPA = "torch.nn.functional.scaled_dot_product_attention"
LESSON = ("04_attention",)

GROUPS = Exercise(
    id="4.7",
    targets=(Target.parse(f"{VARIANTS}:expand_kv_heads"), Target.parse(f"{VARIANTS}:grouped_query")),
    given=(Target.parse(f"{VARIANTS}:multi_head"),),
    title="Query heads that share K and V",
    minutes=10,
    difficulty=1,
    teaches="GQA is MHA over K and V that are kept once for several query heads. Which ones share is a convention.",
    hints=(
        "Two K/V heads a and b serve six query heads, each a run of neighbours. Write down the K/V head of query heads "
        "0 to 5. How many neighbours share one?",
        "expand_kv_heads: how many query heads share a K/V head: heads over the K/V heads that there are.\n"
        "Repeat each K/V head that often before the next one comes. repeat and tile repeat the whole run instead.\n"
        "grouped_query: q says how many heads there are.\n"
        "multi_head does the rest, with k and with v expanded to that many.",
        "def expand_kv_heads(kv, heads):\n"
        "    group = heads // kv.shape[1]\n"
        "    return kv.repeat_interleave(____, dim=1)\n"
        "\n"
        "def grouped_query(q, k, v, scale, visible):\n"
        "    heads = q.shape[1]\n"
        "    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)",
    ),
    notice="What is expanded here is only expanded for reading: kept, and moved, are H_kv heads. A kernel never makes "
           "the copies; it lets the query heads of a group meet each key while it is there.",
    section="What a variant keeps",
    used_by=LESSON,
    library=(SDPA,),
)

MASK = Exercise(
    id="4.8",
    targets=(Target.parse("minillm.attention.reference:causal_mask"),),
    title="A window that slides",
    minutes=10,
    difficulty=2,
    teaches="Who sees whom: where a query stands when others are cached, and how many keys a window of W shows it.",
    hints=(
        "Five keys, and the queries are the last two of these tokens. At which positions do they stand? With a window "
        "of 3, which three keys does each of them see?",
        "Positions of the queries, as a column [S_q, 1]: 0, 1, 2, … and as much further on as keys outnumber queries.\n"
        "Positions of the keys, as a row [1, S_k]: 0, 1, 2, …\n"
        "Visible are keys that do not come later: a comparison of the two gives [S_q, S_k].\n"
        "With a window also hidden: whatever lies W positions back or more.\n"
        "All of it on `device`.",
        "i = torch.arange(queries, device=device)[:, None] + (keys - queries)\n"
        "j = torch.arange(keys, device=device)[None, :]\n"
        "visible = j <= i\n"
        "if window is not None:\n"
        "    visible &= ____\n"
        "return visible",
    ),
    notice="The query itself is one of the W. Others count W keys beside it, and a model run with the wrong count "
           "still writes well: only a row counted by hand shows it.",
    section="What a variant keeps",
    used_by=LESSON,
)

ONLINE = Exercise(
    id="4.9",
    targets=(Target.parse(f"{FLASH}:online_softmax_update"),),
    title="The online softmax",
    minutes=25,
    difficulty=3,
    teaches="The step that makes FlashAttention possible: a sum of powers that can be put right when a larger comes.",
    hints=(
        "So far the largest score was 1, and total is e^(1-1) = 1. Now comes a score of 3, and all powers are to be of "
        "score - 3. What must the old total be multiplied by? And what, if no key was seen yet and m is -inf?",
        "The new m [H, B]: the larger of the old one and the largest score of the tile, query by query.\n"
        "What to subtract: the new m, but 0 where that is -inf still: -inf - -inf would be NaN.\n"
        "weights [H, B, B_k]: e^(score - that); a hidden score gives 0.\n"
        "rescale [H, B]: e^(old m - that): what everything summed so far is multiplied by.\n"
        "total: the old one rescaled, and the sum of the weights.\n"
        "acc: the old one rescaled, and the weights times v. Nothing is divided yet.",
        "new_m = torch.maximum(m, scores.amax(dim=-1))\n"
        'base = new_m.masked_fill(new_m == float("-inf"), 0)\n'
        "weights = torch.exp(scores - base[..., None])\n"
        "rescale = torch.exp(____)\n"
        "new_total = total * rescale + weights.sum(dim=-1)\n"
        "new_acc = acc * rescale[..., None] + weights @ v\n"
        "return new_m, new_total, new_acc",
    ),
    notice="The scores of earlier tiles are gone, and not needed: one factor puts all of their powers right. That is "
           "why the [S_q, S_k] matrix need never exist.",
    section="Softmax, one tile at a time",
    used_by=LESSON,
)

MERGE = Exercise(
    id="4.10",
    targets=(Target.parse(f"{FLASH}:merge"),),
    title="Two partial results become one",
    minutes=15,
    difficulty=2,
    teaches="What a part must hand over so that others can be added: its result, and one number to weigh it with.",
    hints=(
        "One part saw a single key, the other three, all scores 0. Each hands over the mean of its values. With which "
        "weights do the two means become the mean of all four, and how do the logarithms of 1 and 3 give these?",
        "lse [S_q, H] of both together: log(e^lse_a + e^lse_b), without letting e^lse overflow: torch.logaddexp.\n"
        "What to subtract: that lse, but 0 where it is -inf: neither part saw a key, and -inf - -inf would be NaN.\n"
        "The weight of each part: e^(its lse - that). They sum to 1.\n"
        "Each result times its weight, which gets a last dimension for the D_v values; then their sum, and lse.",
        "lse = torch.logaddexp(lse_a, lse_b)\n"
        'base = lse.masked_fill(lse == float("-inf"), 0)\n'
        "weight_a, weight_b = torch.exp(____), torch.exp(lse_b - base)\n"
        "return weight_a[..., None] * out_a + weight_b[..., None] * out_b, lse",
    ),
    notice="Neither the order of the parts matters, nor where the keys were cut: so parts of a long context can be "
           "computed anywhere, on other processors or on other GPUs.",
    section="Splitting the keys",
    used_by=LESSON,
)

LATENT = Exercise(
    id="4.13",
    targets=(Target.parse(f"{VARIANTS}:absorb"), Target.parse(f"{VARIANTS}:mla_absorbed")),
    given=(Target.parse(f"{VARIANTS}:values_from_latent"),),
    title="Attention over latents",
    minutes=20,
    difficulty=3,
    teaches="A projection of every key is the transposed projection of one query: so latents are never expanded.",
    hints=(
        "q·(W·c) is a product of three. Where can the brackets go instead, and how often is W used then, for one query "
        "and a thousand latents c? And is the product a different number, so that it needs another scale?",
        "absorb: each head's q_nope times its own w_uk, summed over D_n, is a query of R values. einsum says it well.\n"
        "Beside it the rotated part, which no projection touches: the key has it behind the latent too.\n"
        "mla_absorbed: the scale is still that of the expanded key: mla_scale(D_n, D_r).\n"
        "k [S_k, 1, R + D_r]: latent and rotated part, one head for all. v [S_k, 1, R]: the latent alone.\n"
        "reference.causal_attention with the absorbed query gives each head a mean of latents.\n"
        "values_from_latent makes its value of it.",
        "def absorb(q_nope, q_rope, w_uk):\n"
        '    q_latent = torch.einsum(____, q_nope, w_uk)\n'
        "    return torch.cat([q_latent, q_rope], dim=-1)\n"
        "\n"
        "def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):\n"
        "    scale = mla_scale(q_nope.shape[-1], q_rope.shape[-1])\n"
        "    k = torch.cat([latent, k_rope], dim=-1)[:, None]\n"
        "    v = latent[:, None]\n"
        "    out = reference.causal_attention(absorb(q_nope, q_rope, w_uk), k, v, scale)\n"
        "    return values_from_latent(out, w_uv)",
    ),
    notice="DeepSeek-V2 keeps 512 + 64 values of a token, and its scale is 1/√(128 + 64), not 1/√576. A norm of each "
           "head's key would stand between q and W, and nothing could be absorbed through it.",
    section="What a variant keeps",
    used_by=LESSON,
    core=False,
    library=(f"{VARIANTS}.mla_expanded", f"{VARIANTS}.expand_latent", SDPA),
)

HUNT = Exercise(
    id="4.14",
    targets=(Target.parse("minillm.course.hunts:smallest_leak"),),
    given=(Target.parse("minillm.course.hunts:seen_with_a_bug"),),
    title="Bug hunt: a window with a leak",
    minutes=15,
    difficulty=2,
    teaches="A mask has two edges, and a tile may lie on either. One left out shows only where tile and window cross.",
    hints=(
        "seen_with_a_bug takes a mask for tiles with keys that come too late. Which other keys may a mask hide, and "
        "can a tile hold some of these, none that come too late, and one that is seen?",
        "A tile of one key is hidden or seen as a whole: the block has to be larger.\n"
        "None of its keys comes later than the first query: the last key is the query's own, say.\n"
        "That one is seen; the one before it must not be: how wide is the window?\n"
        "Then leave out all queries and keys that do not matter.",
        'return {"queries": 1, "keys": ____, "block": 2, "window": ____}',
    ),
    notice="Texts shorter than the window are right, and so is a decode step whose window begins where a tile does. "
           "Tests need windows and lengths that no block size divides.",
    section="Softmax, one tile at a time",
    used_by=(),
    core=False,
)

CORE = (GROUPS, MASK, ONLINE, MERGE)
FURTHER = (LATENT, HUNT)
