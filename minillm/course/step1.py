"""Step 1, prefill and decode."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Step, Target

STEP = Step(1, "prefill_and_decode", "prefill and decode")
SDPA = "torch.nn.functional.scaled_dot_product_attention"

METRICS = Exercise(
    id="1.1",
    targets=(Target.parse("minillm.measure.metrics:request_metrics"),),
    title="TTFT, TPOT and ITL from timestamps",
    minutes=10,
    difficulty=1,
    teaches="Three latencies of one request, and which gaps count into which.",
    hints=(
        "Five fence posts have four gaps between them. How many gaps lie between N tokens, and is the wait for the "
        "first token one of them?",
        "TTFT: from the arrival to the first token.\n"
        "ITLs: one number for each pair of neighbouring tokens, later minus earlier.\n"
        "TPOT: the mean gap, from the first token to the last over the number of gaps.\n"
        "One token has no gap: TPOT is then None, and the list is empty.",
        "ttft = token_times[0] - arrival\n"
        "itls = [later - earlier for earlier, later in zip(token_times, token_times[1:])]\n"
        "if len(token_times) == 1:\n"
        "    return ttft, None, itls\n"
        "return ttft, (token_times[-1] - token_times[0]) / ____, itls",
    ),
    notice="The first token counts into TTFT alone. Put into ITL it would hide a slow prefill in a mean, or make a "
           "steady decode look jumpy.",
    section="Two numbers, not one",
    used_by=("generate",),
)

STEP_TOTALS = Exercise(
    id="1.2",
    targets=(Target.parse("minillm.measure.cost:step_totals"),),
    title="FLOPs and bytes of a step",
    minutes=20,
    difficulty=2,
    teaches="Why prefill is bound by arithmetic and decode by memory: weights are read once, however many tokens come.",
    hints=(
        "Double the number of new tokens. Which of these doubles with it: the multiplications by the weights, the "
        "reading of the weights, the reading of the cache?",
        "FLOPs of the layers: 2 for each weight (shape.linear_params) and each new token.\n"
        "FLOPs of the head: 2 for each of its weights (shape.head_params), for one token a row.\n"
        "FLOPs of attention: for each pair (new token, token of its context), in each layer, shape.q_size values are "
        "multiplied and added twice: q·k, then weights·v.\n"
        "Bytes of weights: the layers' and the head's, once.\n"
        "Bytes of the cache: shape.kv_bytes_per_token(kv_bytes) for each token read (the contexts) or written (new).",
        "new_tokens = sum(query_lens)\n"
        "pairs = sum(q * c for q, c in zip(query_lens, context_lens))\n"
        "flops = 2 * new_tokens * shape.linear_params\n"
        "flops += 2 * len(query_lens) * shape.head_params\n"
        "flops += ____ * pairs * shape.layers * shape.q_size\n"
        "bytes_moved = weight_bytes * (shape.linear_params + shape.head_params)\n"
        "bytes_moved += shape.kv_bytes_per_token(kv_bytes) * (sum(context_lens) + new_tokens)\n"
        "return flops, bytes_moved",
    ),
    notice="new_tokens multiplies the FLOPs but not the bytes of the weights. That one line is why a prefill of 512 "
           "tokens costs far less than 512 decode steps.",
    section="Prefill and decode on one roofline",
    used_by=("plan",),
)

SAMPLING = Exercise(
    id="1.3",
    targets=(Target.parse("minillm.decoding.sampling:greedy"), Target.parse("minillm.decoding.sampling:top_p_filter")),
    title="Greedy and top-p sampling",
    minutes=20,
    difficulty=2,
    teaches="A model gives scores, not a token: how one is chosen, and what top-p keeps.",
    hints=(
        "With probabilities 0.6, 0.3, 0.1 and top_p 0.7, is the second token kept? What is the sum of the tokens "
        "*before* it, and what is it with it?",
        "greedy: along the vocabulary, the place of the largest logit.\n"
        "top_p_filter: sort the logits of each row, largest first.\n"
        "Turn the sorted logits into probabilities.\n"
        "For each, sum the probabilities of those before it (not itself).\n"
        "Drop those whose sum before reached top_p. The first has nothing before it: it always stays.\n"
        "Put -inf where a token was dropped, each in the place it had before sorting.",
        "def greedy(logits):\n"
        "    return logits.argmax(dim=-1)\n"
        "\n"
        "def top_p_filter(logits, top_p):\n"
        "    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)\n"
        "    probabilities = ordered.softmax(dim=-1)\n"
        "    before = ____\n"
        '    ordered = ordered.masked_fill(before >= top_p, float("-inf"))\n'
        '    return torch.full_like(logits, float("-inf")).scatter(-1, ids, ordered)',
    ),
    notice="The sum excludes the token itself, so that the token which carries the sum past top_p is kept, and "
           "at least one always is. The order is undone with scatter, not with a second sort.",
    section="From logits to a token",
    used_by=("generate",),
)

CACHED_LOOP = Exercise(
    id="1.4",
    targets=(Target.parse("minillm.decoding.generate:cached_tokens"),),
    title="The cached decode loop",
    minutes=25,
    difficulty=2,
    teaches="A prefill of the whole prompt, then steps of one token: what a cache saves, and what it must be told.",
    hints=(
        "The prompt has 5 tokens. After the prefill you choose token number 6. Has the model seen it? And how many "
        "tokens does the cache hold at that moment?",
        "Before the loop: pending is the whole prompt, and 0 tokens are cached.\n"
        "In the loop, max_tokens times at most: run the model on pending, a row (0, pending, start) of make_batch.\n"
        "Now as many tokens more are cached as pending had.\n"
        "Choose a token from the logits and yield it.\n"
        "If it is one of stop_ids, that was the last.\n"
        "Otherwise it is what the next step has to process: it alone.",
        "pending, start = list(prompt_ids), 0\n"
        "for _ in range(max_tokens):\n"
        "    logits = model(make_batch([(0, pending, start)], model.device), cache)\n"
        "    start += len(pending)\n"
        "    token = choose(logits)\n"
        "    yield token\n"
        "    if token in stop_ids:\n"
        "        return\n"
        "    pending = ____",
    ),
    notice="Prefill and decode are one line of code: only the length of pending differs. The last token is yielded but "
           "never run: its K and V would serve nobody.",
    section="With and without a cache",
    used_by=("generate", "chat"),
)

ATTENTION = Exercise(
    id="1.5",
    targets=(Target.parse("minillm.attention.reference:causal_attention"),),
    title="Causal attention of one sequence",
    minutes=25,
    difficulty=3,
    teaches="Which key each query may see when most of the sequence is already cached, and how heads share keys.",
    hints=(
        "Eight tokens are cached and two new ones come: 2 queries, 10 keys. Which keys may the first of the two see? "
        "If you answered only key 0, where in the sequence did you place the query?",
        "k and v: repeat each head for its run of neighbouring query heads, so that both have H heads.\n"
        "scores [H, S_q, S_k]: the dot product of every query with every key, head by head, times scale.\n"
        "mask: query i stands at position i + S_k - S_q and sees no later key (causal_mask gives it).\n"
        "Where the mask is False the score becomes -inf, before the softmax.\n"
        "softmax over the keys, then the weighted sum of v, back to [S_q, H, D_v].",
        "queries, heads, _ = q.shape\n"
        "keys, kv_heads, _ = k.shape\n"
        "k = k.repeat_interleave(heads // kv_heads, dim=1)\n"
        "v = v.repeat_interleave(heads // kv_heads, dim=1)\n"
        'scores = torch.einsum("qhd,khd->hqk", q, k) * scale\n'
        "visible = causal_mask(queries, keys, window, q.device)\n"
        'scores = scores.masked_fill(~visible, float("-inf"))\n'
        "weights = torch.softmax(scores, dim=____)\n"
        'return torch.einsum("hqk,khd->qhd", weights, v)',
    ),
    notice="The [H, S_q, S_k] scores are the only thing here that grows with the square of the length. Step 4 computes "
           "the same without ever holding them.",
    section="What one step computes",
    used_by=("generate", "chat"),
    library=(SDPA,),
    backend="reference",
)

RAGGED = Exercise(
    id="1.6",
    targets=(Target.parse("minillm.attention.reference:ragged_attention"),),
    title="Attention over a ragged batch",
    minutes=15,
    difficulty=2,
    teaches="Sequences of different lengths in one step, laid end to end, with nothing padded.",
    hints=(
        "Three rows bring 1, 4 and 2 queries, laid end to end in q. At which index of q does the third row start?",
        "Keep the index at which the current row starts.\n"
        "For each row: take its slice of q, attend to its own keys and values, keep the result.\n"
        "Move the start by the row's number of queries.\n"
        "Lay the results end to end again.",
        "outputs = []\n"
        "start = 0\n"
        "for k, v, length in zip(keys, values, query_lens):\n"
        "    outputs.append(causal_attention(q[start : ____], k, v, scale, window))\n"
        "    start += length\n"
        "return torch.cat(outputs)",
    ),
    notice="The loop over rows is what a kernel does with one block of threads a row: rows never meet, so their "
           "lengths need not agree.",
    section="What one step computes",
    used_by=("generate", "chat"),
    core=False,
    library=(SDPA,),
    backend="reference",
)

ROPE = Exercise(
    id="1.7",
    targets=(Target.parse("minillm.model.layers:apply_rope"),),
    title="Rotary positions",
    minutes=15,
    difficulty=2,
    teaches="How a token's place enters attention: pairs of values turned by an angle that grows with the position.",
    hints=(
        "A point (a, b) is turned by an angle t. What are its two new coordinates? And which value of a head is the "
        "partner of value 0: value 1, or the one half a head further on?",
        "cos and sin are [T, D/2]: give them a dimension for the heads, [T, 1, D/2].\n"
        "Split x into the first and the second half of each head.\n"
        "New first half: first·cos - second·sin. New second half: second·cos + first·sin.\n"
        "Put the halves back together.",
        "cos, sin = cos[:, None, :], sin[:, None, :]\n"
        "first, second = x.chunk(2, dim=-1)\n"
        "return torch.cat((first * cos - second * sin, ____), dim=-1)",
    ),
    notice="Nothing is added to x: it is turned, so its length stays, and q·k depends only on how far apart the two "
           "tokens are. The pairing is a convention of the weights; the wrong one gives fluent nonsense.",
    section="What one step computes",
    used_by=("generate", "chat"),
    core=False,
)

HUNT = Exercise(
    id="1.8",
    targets=(Target.parse("minillm.course.hunts:smallest_sizes"),),
    given=(Target.parse("minillm.course.hunts:attention_with_a_bug"),),
    title="Bug hunt: attention that passes its tests",
    minutes=20,
    difficulty=3,
    teaches="Which inputs tell a right attention from a wrong one, and why a test with easy sizes proves little.",
    hints=(
        "Read attention_with_a_bug beside your answer to 1.5. One call differs. What does it do to [a, b]?",
        "Write down the heads that [a, b] becomes when it is repeated to 2, to 4: once with repeat, once with "
        "repeat_interleave.\n"
        "With which numbers of heads do both give the same?\n"
        "Then make everything that does not matter as small as it gets.",
        'return {"queries": 1, "keys": ____, "heads": ____, "kv_heads": 2}',
    ),
    notice="As many K/V heads as query heads, or a single one, and the two calls agree: tests with easy sizes pass. "
           "Real models have 9 and 3, or 32 and 8.",
    section="What one step computes",
    used_by=(),
    core=False,
)

EXERCISES = (METRICS, STEP_TOTALS, SAMPLING, CACHED_LOOP, ATTENTION, RAGGED, ROPE, HUNT)
