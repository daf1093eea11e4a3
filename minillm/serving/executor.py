"""Carries a step out on a model: swaps, copies, one forward pass over all rows, logits of those that sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from minillm.cache.paged import PagedKVCache
from minillm.model.batch import Batch, make_batch
from minillm.model.transformer import Transformer
from minillm.serving.scheduler import StepPlan


class Executor(Protocol):
    """What the engine needs: one process or eight, it does not know."""

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits [R, V] of the R rows that sample, in the order of plan.rows."""


class ModelExecutor:
    """A model and its paged cache in this process; `host_blocks` of host memory to swap to.

    The cache's block tables belong to the scheduler, which has reserved the blocks of a plan already.
    """

    def __init__(self, model: Transformer, cache: PagedKVCache, host_blocks: int = 0) -> None:
        self.model = model
        self.cache = cache
        pinned = cache.device.type == "cuda"  # page-locked, or the copy waits for the CPU
        self.host = [torch.empty(tensor.shape[0], host_blocks, *tensor.shape[2:], dtype=tensor.dtype,
                                 pin_memory=pinned) for tensor in cache.store]

    def execute(self, plan: StepPlan) -> torch.Tensor:
        # A block swapped out may be copied to, one copied from may be swapped into: reads come before writes.
        _move_blocks(self.cache.store, self.host, plan.swaps_out)
        self.cache.copy_blocks(plan.copies)
        _move_blocks(self.host, self.cache.store, plan.swaps_in)
        rows = [(row.seq_id, row.token_ids, row.start) for row in plan.rows]
        batch = make_batch(rows, self.model.device)
        batch.logit_rows = [last for last, row in zip(batch.logit_rows, plan.rows) if row.samples]
        return self.forward(batch)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits [R, V] of the batch's logit_rows."""
        return self.model(batch, self.cache)


def _move_blocks(source: list[torch.Tensor], target: list[torch.Tensor], pairs: Iterable[tuple[int, int]]) -> None:
    """Copy whole blocks (from, to) of every tensor [layers, blocks, ...] to its partner, on another device perhaps."""
    pairs = list(pairs)
    if pairs:
        origins, places = torch.tensor(pairs).unbind(1)
        for here, there in zip(source, target):
            there[:, places.to(there.device)] = here[:, origins.to(here.device)].to(there.device)
