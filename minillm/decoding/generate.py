"""The decode loops: the naive one, the cached one, and a static batch of cached ones. Each yields tokens as they come.

They know nothing of text: stop strings and streaming are the caller's, who simply stops taking tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from minillm.cache.base import KVCache, NoCache
from minillm.model.batch import make_batch
from minillm.model.transformer import Transformer

Choose = Callable[[torch.Tensor], int]
"""choose(logits [1, V]) -> the next token id"""


def naive_tokens(model: Transformer, cache: NoCache, prompt_ids: Sequence[int], choose: Choose, max_tokens: int,
                 stop_ids: Sequence[int]) -> Iterator[int]:
    """Generate by running the whole text through the model for every token: n tokens cost n² / 2 token passes.

    Yields token ids, at most max_tokens; a token in stop_ids is yielded and is the last.
    """
    text = list(prompt_ids)
    for _ in range(max_tokens):
        logits = model(make_batch([(0, text, 0)], model.device), cache)  # [1, V]
        token = choose(logits)
        yield token
        if token in stop_ids:
            return
        text.append(token)


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


def batch_tokens(
    model: Transformer,
    cache: KVCache,
    prompts: Mapping[int, Sequence[int]],
    choose: Callable[[torch.Tensor, list[int]], list[int]],
    is_last: Callable[[int, int], bool],
) -> Iterator[list[tuple[int, int]]]:
    """Generate for several sequences at once: one ragged prefill, then one token a step for every one still running.

    prompts: sequence id -> its token ids, of which the cache may hold a beginning already (a prefix hit).
    choose(logits [B, V], seqs) gives the next token of each sequence in `seqs`. Each step yields its (seq, token)
    pairs; then is_last(seq, token) says which are done, and those leave and are freed. No sequence waits for another
    to end, but none joins either: that is static batching.
    """
    running = {seq: (list(ids)[cache.length(seq) :], cache.length(seq)) for seq, ids in prompts.items()}
    while running:
        batch = make_batch([(seq, pending, start) for seq, (pending, start) in running.items()], model.device)
        logits = model(batch, cache)  # [B, V]
        seqs = list(running)
        emitted = list(zip(seqs, choose(logits, seqs)))
        yield emitted
        for seq, token in emitted:
            if is_last(seq, token):
                cache.free(seq)
                del running[seq]
            else:
                pending, start = running[seq]
                running[seq] = ([token], start + len(pending))
