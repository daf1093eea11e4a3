"""Batches that are fixed once they start: static batching, and dynamic batching. What continuous batching is held
against, on the same model.

A batch runs until its longest answer ends. Nobody joins, and the rows of answers that ended go on beside the others:
their tokens are thrown away, which is what a batch of fixed shape costs.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

from minillm.cache.base import KVCache
from minillm.decoding import generate, sampling
from minillm.measure.arguments import check_seconds, check_whole
from minillm.model.transformer import Transformer
from minillm.serving.engine import StepRecord
from minillm.serving.request import Request


def slot_efficiency(lengths: SequenceOf[int]) -> float:
    """The share of a static batch's row-steps that make a token somebody wants.

    lengths [n]: output tokens of each answer, at least 1, in any order. The batch takes as many steps as its longest
    answer, and in each of them every one of its n rows is computed: a row-step is one row in one step.
    """
    wanted = sum(lengths)
    row_steps = len(lengths) * max(lengths)
    return wanted / row_steps


def next_batch(arrivals: SequenceOf[float], free_at: float, max_size: int, timeout: float) -> tuple[float, int]:
    """When the next batch starts, and with how many requests: dynamic batching (as model servers do it).

    arrivals: when each request that is not served yet comes, ascending, seconds, at least one; those to come are among
    them. The batch starts as soon as the machine is free (free_at) and either max_size requests are there or the first
    of them has waited `timeout` seconds. It takes all that are there by then (who comes at that very moment is in), the
    first come first, max_size at most. Returns the moment, in the same seconds as arrivals, and the number.
    """
    full_at = arrivals[max_size - 1] if len(arrivals) >= max_size else math.inf
    start = max(free_at, min(full_at, arrivals[0] + timeout))
    there = sum(arrival <= start for arrival in arrivals)
    return start, min(there, max_size)


def serve(model: Transformer, cache: KVCache, requests: SequenceOf[Request], max_size: int,
          timeout: float | None = None, on_step: Callable[[StepRecord], None] | None = None) -> None:
    """Serve requests in batches, on the clock of their arrivals (time.perf_counter()), some of which may be to come.

    timeout in seconds: dynamic batching, see `next_batch`. None: static batching, which waits for a full batch; the
    last one starts when the last request is there. The cache must have room for max_size rows as long as the longest
    prompt and the longest output of a batch together; afterwards it is as before.
    Raises ValueError, before anything runs, for a size that is no whole number from 1 on, a timeout that is negative or
    endless, or a request of several answers.
    """
    check_whole("max_size", max_size, 1)
    if timeout is not None:
        check_seconds("timeout", timeout)
    for request in requests:
        if len(request.answers) > 1:
            raise ValueError(f"request '{request.request_id}' asks for {len(request.answers)} answers: expected 1")
    waiting = sorted(requests, key=lambda request: request.arrival)
    seqs = itertools.count(1)
    while waiting:
        arrivals = [request.arrival for request in waiting]
        if timeout is None:
            size = min(max_size, len(waiting))
            start = arrivals[size - 1]
        else:
            start, size = next_batch(arrivals, time.perf_counter(), max_size, timeout)
        time.sleep(max(0.0, start - time.perf_counter()))
        batch, waiting = waiting[:size], waiting[size:]
        rows = {next(seqs): request for request in batch}
        try:
            for record in _run(model, cache, rows, waiting):
                if on_step is not None:
                    on_step(record)
        finally:  # of those that an error leaves in it
            for seq in rows:
                if cache.length(seq):
                    cache.free(seq)


def _run(model: Transformer, cache: KVCache, batch: dict[int, Request],
         waiting: SequenceOf[Request]) -> Iterator[StepRecord]:
    """One batch, to the end of its longest answer; a record a step."""
    answers = {seq: request.answers[0] for seq, request in batch.items()}
    steps = generate.batch_tokens(
        model, cache, {seq: request.prompt_ids for seq, request in batch.items()},
        lambda logits, seqs: sampling.sample(logits, [answers[seq].sampler for seq in seqs]),
        lambda seq, token: all(answer.finish_reason is not None for answer in answers.values()))
    rows = [(seq, 0, len(request.prompt_ids)) for seq, request in batch.items()]
    start = time.perf_counter()
    for emitted in steps:
        for seq, token in emitted:
            if answers[seq].finish_reason is None:
                answers[seq].take(token)
                if answers[seq].finish_reason is not None:
                    answers[seq].close()
        end = time.perf_counter()
        here = sum(request.arrival <= end for request in waiting)
        yield StepRecord(start, end, tuple(rows), (), here, end - start, 0, 0)
        rows = [(seq, place + count, 1) for seq, place, count in rows]
        start = time.perf_counter()
