"""A paged cache whose blocks the Triton kernels read where they lie: nothing is gathered.

A step's rows are of two kinds. A row of one new token reads all its K and V for little arithmetic: split-KV decode
attention. A row of more (a prompt, or a chunk of one) is a matter of matrix products: FlashAttention. What the kernels
need to know of a step is put on the device once, in `begin`, and shared by all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from minillm.attention import triton_backend
from minillm.cache.paged import PagedKVCache, PagedStep
from minillm.cache.tables import BlockTables
from minillm.kernels import flash_attention, paged_decode, rope_cache
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


@dataclass
class Part:
    """Some rows of a step, all of one kind.

    tokens          [n] int64, their places among the step's T tokens; None: all of them, in order
    block_tables    [rows, pages] int32, padded with 0
    context_lens    [rows] int32
    query_lens, key_lens    the same lengths on the host
    """

    tokens: torch.Tensor | None
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_lens: list[int]
    key_lens: list[int]


@dataclass
class TritonStep(PagedStep):
    """`decode`: the rows of one new token, `prefill`: the others; None where there are none. `tables` stays empty.

    `plan`: the prefill's tiles by window, made by the first layer that needs them.
    """

    decode: Part | None = None
    prefill: Part | None = None


class TritonPagedKVCache(PagedKVCache):
    """A PagedKVCache on a GPU (or under Triton's interpreter).

    Raises ValueError as PagedKVCache does, where no kernel can run, and for head sizes the kernels do not take.
    """

    def __init__(self, specs: list[KVSpec], tables: BlockTables, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu") -> None:
        check(specs, device)
        super().__init__(specs, tables, dtype, device, "triton")

    def begin(self, batch: Batch) -> TritonStep:
        slots, tables = self._place(batch)
        paged_decode.check_tables(tables, batch.context_lens, self.pool.num_blocks, self.pool.block_size)
        step = TritonStep(batch, self, torch.tensor(slots, device=self.device), [])
        decodes = [row for row, added in enumerate(batch.query_lens) if added == 1]
        others = [row for row, added in enumerate(batch.query_lens) if added > 1]
        step.decode, step.prefill = (self._part(batch, tables, rows) for rows in (decodes, others))
        return step

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: TritonStep) -> torch.Tensor:
        self._write(layer, step, k, v)
        return self._attend(layer, q, step)

    def rotate_and_attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor,
                          sin: torch.Tensor, step: TritonStep) -> torch.Tensor:
        """`attend` of q and k that are still to be rotated by cos and sin [T, D/2], in the pass that stores K and V."""
        q = rope_cache.rope_and_store(q, k, v, cos, sin, step.slots, *(tensor[layer] for tensor in self.store))
        return self._attend(layer, q, step)

    def _attend(self, layer: int, q: torch.Tensor, step: TritonStep) -> torch.Tensor:
        """Attention of q [T, H, D] over what is stored: [T, H, D_v]."""
        if step.prefill is None:
            return self._decode(layer, q, step.decode)
        if step.decode is None:
            return self._prefill(layer, q, step.prefill, step)
        out = q.new_empty(*q.shape[:2], self.specs[layer].v_dim)
        out[step.decode.tokens] = self._decode(layer, q[step.decode.tokens], step.decode)
        out[step.prefill.tokens] = self._prefill(layer, q[step.prefill.tokens], step.prefill, step)
        return out

    def _decode(self, layer: int, q: torch.Tensor, part: Part) -> torch.Tensor:
        spec = self.specs[layer]
        return paged_decode.paged_decode(q, *(tensor[layer] for tensor in self.store), part.block_tables,
                                         part.context_lens, spec.scale, window=spec.window)

    def _prefill(self, layer: int, q: torch.Tensor, part: Part, step: TritonStep) -> torch.Tensor:
        spec = self.specs[layer]
        if spec.window not in step.masks:
            step.masks[spec.window] = flash_attention.plan_tiles(part.query_lens, part.key_lens, q, window=spec.window,
                                                                 value_dim=spec.v_dim)
        return flash_attention.flash_attention(
            q, *(tensor[layer] for tensor in self.store), part.query_lens, part.key_lens, spec.scale,
            window=spec.window, block_tables=part.block_tables, plan=step.masks[spec.window])

    def _part(self, batch: Batch, tables: list[list[int]], rows: Sequence[int]) -> Part | None:
        """The rows of these numbers, on the device; None if there are none."""
        if not rows:
            return None
        tokens = None
        if len(rows) < len(tables):
            starts = torch.tensor([0, *batch.query_lens]).cumsum(0).tolist()
            tokens = torch.tensor([i for row in rows for i in range(starts[row], starts[row + 1])], device=self.device)
        lengths = [batch.context_lens[row] for row in rows]
        return Part(tokens, table_matrix([tables[row] for row in rows], self.device),
                    torch.tensor(lengths, dtype=torch.int32, device=self.device),
                    [batch.query_lens[row] for row in rows], lengths)


def check(specs: list[KVSpec], device: torch.device | str) -> None:
    """Raises ValueError where no kernel can run on the device, or none takes what a layer keeps."""
    triton_backend.check(device)
    for name, size in ((name, getattr(spec, name)) for spec in specs for name in ("k_dim", "v_dim")):
        if size not in flash_attention.HEAD_SIZES:
            raise ValueError(f"{name} is {size}: expected one of {flash_attention.HEAD_SIZES} for attention 'triton'")
    if any(spec.v_in_k for spec in specs):
        raise ValueError("attention is 'triton' where V is a part of K (absorbed MLA): expected 'sdpa'")


def decode_codes(q: torch.Tensor, stores: Sequence[Sequence[torch.Tensor]], step: PagedStep,
                 spec: KVSpec) -> torch.Tensor:
    """Attention of q [B, H, D], one query a row, over a layer of a QuantizedKVCache, codes as they lie: [B, H, D_v].

    stores: codes [num_blocks, block_size, H_kv, D] and scales [num_blocks, 1, H_kv, 1] of K, and of V. The tables'
    matrix is made by the step's first layer, for all.
    """
    if "decode" not in step.masks:
        lengths = torch.tensor(step.batch.context_lens, dtype=torch.int32, device=q.device)
        tables = pad_sequence(step.tables, batch_first=True).to(torch.int32)  # [B, pages]
        step.masks["decode"] = tables, lengths
    (k, k_scales), (v, v_scales) = stores
    return paged_decode.paged_decode(q, k, v, *step.masks["decode"], spec.scale, window=spec.window,
                                     k_scales=k_scales, v_scales=v_scales)


def table_matrix(tables: list[list[int]], device: torch.device) -> torch.Tensor:
    """Block tables of several lengths as one int32 [rows, pages], padded with 0, which is not read."""
    pages = max(map(len, tables))
    return torch.tensor([table + [0] * (pages - len(table)) for table in tables], dtype=torch.int32, device=device)
