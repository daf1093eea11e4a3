"""Beam search: the likeliest continuations, several at a time, sharing the blocks of all they have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from minillm.cache.paged import PagedKVCache
from minillm.model.batch import make_batch
from minillm.model.transformer import Transformer


@dataclass(frozen=True)
class BeamSearchParams:
    """What to search for; names are vLLM's.

    beam_width      continuations kept at each step, and returned
    max_tokens      output tokens at most
    ignore_eos      go on past the model's end tokens
    length_penalty  log-probabilities are divided by length ** this before they are compared at the end
    Raises ValueError for a width or a length below 1.
    """

    beam_width: int
    max_tokens: int = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected at least 1")


@dataclass
class Beam:
    """One continuation: its tokens (an end token included), the sum of their log-probabilities, and its text."""

    token_ids: list[int]
    cumulative_logprob: float
    text: str = ""


def best_children(logprobs: torch.Tensor, scores: Sequence[float], width: int) -> list[tuple[int, int, float]]:
    """The `width` best (parent row, token, score) over logprobs [beams, V] added to each parent's score."""
    totals = logprobs + torch.tensor(scores, dtype=logprobs.dtype)[:, None]  # [beams, V]
    values, places = totals.flatten().topk(min(width, totals.numel()))
    vocab = logprobs.shape[1]
    return [(place // vocab, place % vocab, value) for value, place in zip(values.tolist(), places.tolist())]


def search(model: Transformer, cache: PagedKVCache, prompt_ids: Sequence[int], params: BeamSearchParams,
           end_ids: Iterable[int]) -> list[Beam]:
    """Up to `beam_width` continuations of prompt_ids, the best first.

    Each step extends every beam by every token, and keeps the best. A beam that survives more than once is forked: its
    blocks are shared, and only a partial last one is copied. The cache is as before when the search ends.
    """
    tables = cache.tables
    fresh = (seq for seq in itertools.count(-1, -1) if seq not in tables.tables)  # ids that nobody else gives
    first = next(fresh)
    start = tables.start(first, prompt_ids)
    opened = {first}
    running, pending = {first: Beam([], 0.0)}, {first: list(prompt_ids)[start:]}
    done: list[Beam] = []
    try:
        for _ in range(params.max_tokens):
            rows = [(seq, pending[seq], cache.length(seq)) for seq in running]
            logprobs = model(make_batch(rows, model.device), cache).cpu().double().log_softmax(-1)  # [beams, V]
            before, parents = running, list(running)
            scores = [beam.cumulative_logprob for beam in before.values()]
            running, pending = {}, {}
            # twice as many as wanted, since some may end here
            for row, token, score in best_children(logprobs, scores, 2 * params.beam_width):
                beam = Beam([*before[parents[row]].token_ids, token], score)
                if token in end_ids:
                    done.append(beam)
                elif len(running) < params.beam_width:
                    child = next(fresh)
                    cache.fork(parents[row], child)
                    opened.add(child)
                    running[child], pending[child] = beam, [token]
            for seq in parents:
                cache.free(seq)
            if not running:
                break
    finally:
        for seq in opened & tables.tables.keys():
            cache.free(seq)
    done += running.values()
    done.sort(key=lambda b: -b.cumulative_logprob / len(b.token_ids) ** params.length_penalty)
    return done[: params.beam_width]

