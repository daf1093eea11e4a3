"""Step 1, prefill and decode: the answers, as the package itself has them.

Generated from the package's source by minillm.course.build; nothing here is edited by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from minillm.attention import reference
from minillm.attention.reference import causal_mask
from minillm.cache.base import KVCache
from minillm.decoding.generate import Choose
from minillm.measure.shape import ModelShape
from minillm.model.batch import make_batch
from minillm.model.transformer import Transformer

# ----------------------------------------------------------------------------
# 1.1 TTFT, TPOT and ITL from timestamps
# 10 minutes, difficulty 1 of 3, our answer has 6 lines
# Teaches: Three latencies of one request, and which gaps count into which.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "Two numbers, not one"
#
# Notice: The first token counts into TTFT alone. Put into ITL it would hide a slow prefill in a
#   mean, or make a steady decode look jumpy.


def request_metrics(arrival: float, token_times: Sequence[float]) -> tuple[float, float | None, list[float]]:
    """(TTFT, TPOT, ITLs) of one request, in seconds.

    `arrival`: when the request came; `token_times` [N]: when each output token reached the user, ascending, N >= 1.
    ITLs are the N - 1 gaps between tokens. TPOT is (last - first) / (N - 1), None when there is only one token.
    """
    ttft = token_times[0] - arrival
    itls = [later - earlier for earlier, later in zip(token_times, token_times[1:])]
    if len(token_times) == 1:
        return ttft, None, itls
    tpot = (token_times[-1] - token_times[0]) / (len(token_times) - 1)
    return ttft, tpot, itls


# ----------------------------------------------------------------------------
# 1.2 FLOPs and bytes of a step
# 20 minutes, difficulty 2 of 3, our answer has 8 lines
# Teaches: Why prefill is bound by arithmetic and decode by memory: weights are read once, however
#   many tokens come.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "Prefill and decode on one roofline"
#
# Notice: new_tokens multiplies the FLOPs but not the bytes of the weights. That one line is why a
#   prefill of 512 tokens costs far less than 512 decode steps.


def step_totals(
    shape: ModelShape,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    weight_bytes: float = 2.0,
    kv_bytes: float = 2.0,
) -> tuple[float, float]:
    """(FLOPs, bytes) of one step: the two numbers that predict its time.

    query_lens [B] new tokens of each row, context_lens [B] tokens each row attends to; weight_bytes per parameter,
    kv_bytes per cached value. Every new token goes through the layers' projections, and the last one of each row
    through the head. Attention multiplies q·k and weights·v for each pair. Weights are read once; K and V of the whole
    context are read, and those of the new tokens written.
    """
    new_tokens = sum(query_lens)
    pairs = sum(q * c for q, c in zip(query_lens, context_lens))
    flops = 2 * new_tokens * shape.linear_params
    flops += 2 * len(query_lens) * shape.head_params
    flops += 4 * pairs * shape.layers * shape.q_size
    bytes_moved = weight_bytes * (shape.linear_params + shape.head_params)
    bytes_moved += shape.kv_bytes_per_token(kv_bytes) * (sum(context_lens) + new_tokens)
    return flops, bytes_moved


# ----------------------------------------------------------------------------
# 1.3 Greedy and top-p sampling
# 20 minutes, difficulty 2 of 3, our answer has 6 lines
# Teaches: A model gives scores, not a token: how one is chosen, and what top-p keeps.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "From logits to a token"
#
# Notice: The sum excludes the token itself, so that the token which carries the sum past top_p is
#   kept, and at least one always is. The order is undone with scatter, not with a second sort.


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row: logits [B, V] -> ids [B]; of equals, the lowest id."""
    return logits.argmax(dim=-1)


def top_p_filter(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """Nucleus sampling's cut (Holtzman et al. 2020): logits [B, V] -> the same with -inf outside each row's nucleus.

    The nucleus is the fewest most likely tokens whose probabilities sum to at least top_p in (0, 1]; it always holds
    at least one.
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)  # [B, V], most likely first
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the tokens ahead of each one already hold
    ordered = ordered.masked_fill(before >= top_p, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, ids, ordered)  # back in the vocabulary's order


# ----------------------------------------------------------------------------
# 1.4 The cached decode loop
# 25 minutes, difficulty 2 of 3, our answer has 9 lines
# Teaches: A prefill of the whole prompt, then steps of one token: what a cache saves, and what it
#   must be told.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "With and without a cache"
#
# Notice: Prefill and decode are one line of code: only the length of pending differs. The last
#   token is yielded but never run: its K and V would serve nobody.


def cached_tokens(model: Transformer, cache: KVCache, prompt_ids: Sequence[int], choose: Choose, max_tokens: int,
                  stop_ids: Sequence[int]) -> Iterator[int]:
    """Generate with a KV cache: the prompt goes through the model once (prefill), then one token a step (decode).

    Yields token ids, at most max_tokens; a token in stop_ids is yielded and is the last. The cache must not hold
    sequence 0 yet; afterwards it holds all of the text but the last token, whose K and V nobody needed.
    """
    pending, start = list(prompt_ids), 0
    for _ in range(max_tokens):
        logits = model(make_batch([(0, pending, start)], model.device), cache)  # [1, V]
        start += len(pending)
        token = choose(logits)
        yield token
        if token in stop_ids:
            return
        pending = [token]


# ----------------------------------------------------------------------------
# 1.5 Causal attention of one sequence
# 25 minutes, difficulty 3 of 3, our answer has 9 lines
# Teaches: Which key each query may see when most of the sequence is already cached, and how heads
#   share keys.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "What one step computes"
#
# Notice: The [H, S_q, S_k] scores are the only thing here that grows with the square of the length.
#   Step 4 computes the same without ever holding them.


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """Causal attention of one sequence: softmax(q·kᵀ·scale + mask)·v, head by head (Vaswani et al. 2017).

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v] -> [S_q, H, D_v], in q's dtype. With fewer K/V heads than
    query heads, each K/V head serves a run of H / H_kv neighbouring query heads (GQA, Ainslie et al. 2023). The
    queries are the last S_q positions. `window`: keys visible to each query, itself included.
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat_interleave(heads // kv_heads, dim=1)  # [S_k, H, D]
    v = v.repeat_interleave(heads // kv_heads, dim=1)  # [S_k, H, D_v]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    visible = causal_mask(queries, keys, window, q.device)  # [S_q, S_k]
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)  # each row sums to 1
    return torch.einsum("hqk,khd->qhd", weights, v)  # [S_q, H, D_v]


# Further: what follows does not count against your progress.


# ----------------------------------------------------------------------------
# 1.6 Attention over a ragged batch
# 15 minutes, difficulty 2 of 3, our answer has 6 lines
# Teaches: Sequences of different lengths in one step, laid end to end, with nothing padded.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "What one step computes"
#
# Notice: The loop over rows is what a kernel does with one block of threads a row: rows never meet,
#   so their lengths need not agree.


def ragged_attention(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    query_lens: list[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of B sequences whose queries are laid end to end, each with keys of its own.

    q [T, H, D] with T = sum(query_lens); keys[b] [S_b, H_kv, D], values[b] [S_b, H_kv, D_v] -> [T, H, D_v].
    No row sees another row's keys, and nothing is padded.
    """
    outputs = []
    start = 0
    for k, v, length in zip(keys, values, query_lens):
        outputs.append(causal_attention(q[start : start + length], k, v, scale, window))
        start += length
    return torch.cat(outputs)  # [T, H, D_v]


# ----------------------------------------------------------------------------
# 1.7 Rotary positions
# 15 minutes, difficulty 2 of 3, our answer has 3 lines
# Teaches: How a token's place enters attention: pairs of values turned by an angle that grows with
#   the position.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "What one step computes"
#
# Notice: Nothing is added to x: it is turned, so its length stays, and q·k depends only on how far
#   apart the two tokens are. The pairing is a convention of the weights; the wrong one gives fluent
#   nonsense.


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head's pairs (x_i, x_{i+D/2}) by its token's angle: x [T, H, D], cos and sin [T, D/2] -> [T, H, D].

    The pairs are half a head apart (the hub's convention), not neighbours (the paper's, and GGUF's for Llama).
    """
    cos, sin = cos[:, None, :], sin[:, None, :]  # [T, 1, D/2], the same for every head
    first, second = x.chunk(2, dim=-1)  # [T, H, D/2] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


# ----------------------------------------------------------------------------
# 1.8 Bug hunt: attention that passes its tests
# 20 minutes, difficulty 3 of 3, our answer has 1 line
# Teaches: Which inputs tell a right attention from a wrong one, and why a test with easy sizes
#   proves little.
# Lesson: notebooks/01_prefill_and_decode.ipynb, section "What one step computes"
#
# Notice: As many K/V heads as query heads, or a single one, and the two calls agree: tests with
#   easy sizes pass. Real models have 9 and 3, or 32 and 8.


def attention_with_a_bug(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one sequence, with one mistake in it.

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v] -> [S_q, H, D_v].
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat(1, heads // kv_heads, 1)  # [S_k, H, D]
    v = v.repeat(1, heads // kv_heads, 1)  # [S_k, H, D_v]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    scores = scores.masked_fill(~reference.causal_mask(queries, keys, None, q.device), float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), v)  # [S_q, H, D_v]


def smallest_sizes() -> dict[str, int]:
    """Sizes of the smallest input on which attention_with_a_bug is wrong: queries, keys, heads and kv_heads.

    The check makes q, k and v of these sizes (D = D_v = 1, random numbers) and compares with the right attention. heads
    is a multiple of kv_heads, and there are no more queries than keys. Smallest: the fewest numbers in q, k and v.
    """
    return {"queries": 1, "keys": 1, "heads": 4, "kv_heads": 2}
