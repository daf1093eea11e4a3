"""Decode steps as CUDA graphs: the launches of a whole forward pass recorded once, then replayed by one call.

A decode step of a small model is hundreds of short kernels. Launched one by one from Python they take longer to launch
than to run. A graph has none of that, but it is fixed: the same shapes and the same memory each time. So there is one
for each number of rows of a ladder, 1, 2, 4, 8, 16, 24, …; a step takes the next larger one and leaves its last rows
empty (no slot to write to, no keys to read), and what changes is copied into the graph's own inputs first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from minillm.cache.triton_paged import Part, TritonPagedKVCache, TritonStep
from minillm.model.batch import Batch
from minillm.model.transformer import Transformer
from minillm.serving.executor import ModelExecutor

Run = Callable[[], torch.Tensor]
SINGLE_STEPS, STRIDE = (1, 2, 4, 8), 16


def ladder(most: int) -> list[int]:
    """The numbers of rows that have a graph, ascending; the last is `most`.

    Close together where rows are few, since there an empty row is a large part of the work.
    """
    return sorted({size for size in (*SINGLE_STEPS, *range(STRIDE, most, STRIDE)) if size < most} | {most})


def record(run: Run, pool: Any = None) -> Run:
    """A function that replays on the GPU what `run` launched, and returns the same tensor each time, newly filled.

    `run` is called before it is recorded: Triton compiles then, and libraries allocate what they need. pool: memory
    that several graphs share, since only one of them runs at a time.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


@dataclass
class Inputs:
    """What a decode step is made of, in memory that stays: `rows` rows at most, `pages` blocks each."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor

    @classmethod
    def empty(cls, rows: int, pages: int, device: torch.device) -> Inputs:
        ids, positions = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        return cls(ids, positions, torch.full_like(ids, -1), torch.zeros(rows, pages, dtype=torch.int32, device=device),
                   torch.zeros(rows, dtype=torch.int32, device=device))

    def fill(self, batch: Batch, step: TritonStep, size: int) -> None:
        """Put a step in, and empty the rows behind it up to `size`."""
        rows, pages = step.decode.block_tables.shape
        for mine, new in ((self.token_ids, batch.token_ids), (self.positions, batch.positions),
                          (self.slots, step.slots), (self.context_lens, step.decode.context_lens)):
            mine[:rows] = new
        self.block_tables[:rows, :pages] = step.decode.block_tables
        self.slots[rows:size] = -1
        self.context_lens[rows:size] = 0


class GraphExecutor(ModelExecutor):
    """A ModelExecutor whose decode steps are replayed; steps with a prompt in them run as they are.

    The model must write K and V through `rotate_and_attend` (see `minillm.model.fused`), which knows empty rows.
    Graphs are recorded here, one for each size of `ladder(max_rows)`; longest: tokens of a sequence, at most.
    The logits of a decode step are the graph's own memory: they hold until the next step.
    """

    def __init__(self, model: Transformer, cache: TritonPagedKVCache, host_blocks: int, max_rows: int, longest: int,
                 recorded: Callable[[Run], Run] | None = None) -> None:
        super().__init__(model, cache, host_blocks)
        self.inputs = Inputs.empty(max_rows, cache.pool.blocks_for(longest), cache.device)
        recorded = recorded or partial(record, pool=torch.cuda.graph_pool_handle())
        # the largest first: what it allocates is enough for the others
        self.graphs = {size: recorded(self._decode(size)) for size in reversed(ladder(max_rows))}

    @torch.inference_mode()  # the inputs are written to, also where they were made in this mode
    def forward(self, batch: Batch) -> torch.Tensor:
        rows = len(batch.query_lens)
        size = min((size for size in self.graphs if size >= rows), default=None)
        if size is None or max(batch.query_lens) > 1:
            return super().forward(batch)
        self.inputs.fill(batch, self.cache.begin(batch), size)
        logits = self.graphs[size]()  # [size, V]
        return logits[:rows] if batch.logit_rows == list(range(rows)) else logits[batch.logit_rows]

    def _decode(self, size: int) -> Run:
        """A forward pass over the first `size` rows of the inputs."""
        inputs = self.inputs
        batch = Batch(inputs.token_ids[:size], inputs.positions[:size], list(range(size)), [1] * size, [1] * size,
                      list(range(size)))
        part = Part(None, inputs.block_tables[:size], inputs.context_lens[:size], [1] * size, [1] * size)
        step = TritonStep(batch, self.cache, inputs.slots[:size], [], decode=part)

        @torch.inference_mode()
        def run() -> torch.Tensor:
            return self.model.head(self.model.run(self.model.embed(batch), step), batch.logit_rows)

        return run
