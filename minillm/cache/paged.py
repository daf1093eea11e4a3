"""A cache whose memory is blocks: a sequence takes one more when its last is full, wherever that one lies.

K and V are two tensors [layers, num_blocks, block_size, H_kv, D]. A slot is a place for one token: slot = block *
block_size + offset. Which blocks belong to whom is in `tables` (plain integers, which a scheduler may own and fill
ahead); this class owns the tensors, carries out the copies and attends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from minillm.attention import backends
from minillm.cache.base import Step
from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError
from minillm.cache.tables import BlockTables
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


def slot_mapping(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """The slots of tokens start … end - 1 of a sequence: block * block_size + offset, one a token."""
    return [table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def gather_blocks(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` tokens of a sequence, in order, out of its blocks.

    blocks [num_blocks, block_size, H_kv, D], table [pages] int64 -> [length, H_kv, D], a copy.
    """
    pages = blocks[table]  # [pages, block_size, H_kv, D]
    return pages.flatten(0, 1)[:length]


@dataclass
class PagedStep(Step):
    """`slots` [T]: where each token's K and V go; `tables[b]` [pages]: the blocks of row b, for attention."""

    slots: torch.Tensor
    tables: list[torch.Tensor]


class PagedKVCache:
    """K and V in the blocks of `tables.pool` (PagedAttention, Kwon et al. 2023).

    Raises ValueError for layers that differ in their heads or an unknown backend; CacheError from `begin` when a
    sequence does not continue where it ended or the pool has no room for the whole batch, with nothing changed.
    """

    def __init__(self, specs: list[KVSpec], tables: BlockTables, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", backend: str = "sdpa") -> None:
        sizes = {(s.heads, s.k_dim, s.v_dim, s.v_in_k) for s in specs}
        if len(sizes) != 1:
            raise ValueError(f"layers keep (heads, k_dim, v_dim, v_in_k) of {sorted(sizes)}: expected the same in "
                             "every layer")
        self.specs = specs
        self.tables = tables
        self.dtype = dtype
        self.device = torch.device(device)
        self.backend = backends.check_backend(backend)
        self.store: list[torch.Tensor] = self._allocate()
        self._scratch: list[torch.Tensor] = []

    @property
    def pool(self) -> BlockPool:
        return self.tables.pool

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.store)

    def begin(self, batch: Batch) -> PagedStep:
        slots, tables = self._place(batch)
        return PagedStep(batch, self, torch.tensor(slots, device=self.device),
                         [torch.tensor(table, device=self.device) for table in tables])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: PagedStep) -> torch.Tensor:
        self._write(layer, step, k, v)
        keys, values = self._read(layer, step)
        spec = self.specs[layer]
        return backends.attend(self.backend, q, keys, values, step.batch.query_lens, spec.scale, spec.window,
                               step.masks)

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, (from, to), in every layer."""
        pairs = list(copies)
        if pairs:
            source, target = torch.tensor(pairs, device=self.device).unbind(1)
            for tensor in self.store:
                tensor[:, target] = tensor[:, source]

    def length(self, seq: int) -> int:
        return self.tables.lengths.get(seq, 0)

    def fork(self, parent: int, child: int) -> None:
        """A new sequence that continues the same text, sharing its blocks until one of the two writes into them."""
        self.tables.fork(parent, child)

    def truncate(self, seq: int, n: int) -> None:
        self.tables.truncate(seq, n)

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        kept, length = list(positions), self.length(seq)
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < length):
            raise CacheError(f"sequence {seq} told to keep positions {kept}: expected ascending ones below {length}")
        moved = next((place for place, position in enumerate(kept) if place != position), len(kept))
        if moved < len(kept):  # from here on tokens move down: into blocks that must be ours alone
            self.tables.lengths[seq] = moved
            try:
                self.copy_blocks(self.tables.reserve({seq: length}))
            finally:
                self.tables.lengths[seq] = length
            table, size = self.tables.tables[seq], self.pool.block_size
            sources = [slot for p in kept[moved:] for slot in slot_mapping(table, p, p + 1, size)]
            self._move(sources, slot_mapping(table, moved, len(kept), size))
        self.truncate(seq, len(kept))

    def free(self, seq: int) -> None:
        self.tables.free(seq)

    def _place(self, batch: Batch) -> tuple[list[int], list[list[int]]]:
        """Make room for the batch's tokens: each token's slot, and the blocks that each row has then."""
        for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            if total - added != self.length(seq):
                raise CacheError(f"sequence {seq} continues at token {total - added}: expected {self.length(seq)}, "
                                 "where it ended")
        self.copy_blocks(self.tables.reserve(dict(zip(batch.seq_ids, batch.context_lens))))
        slots: list[int] = []
        tables = []
        for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            table = self.tables.tables[seq]
            slots += slot_mapping(table, total - added, total, self.pool.block_size)
            tables.append(table[: self.pool.blocks_for(total)])
            self.tables.lengths[seq] = total
        return slots, tables

    def _allocate(self) -> list[torch.Tensor]:
        """K and V of all layers, or K alone where V is in it. Empty, not zeros: the operating system hands pages out as
        they are first written."""
        spec, pool = self.specs[0], self.pool
        size = (len(self.specs), pool.num_blocks, pool.block_size, spec.heads)
        dims = (spec.k_dim,) if spec.v_in_k else (spec.k_dim, spec.v_dim)
        return [torch.empty(*size, dim, dtype=self.dtype, device=self.device) for dim in dims]

    def _write(self, layer: int, step: PagedStep, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put k, v [T, H_kv, D] of a layer into their slots."""
        for tensor, new in zip(self.store, (k, v)):
            tensor[layer].flatten(0, 1)[step.slots] = new  # [num_blocks * block_size, H_kv, D]

    def _move(self, sources: list[int], targets: list[int]) -> None:
        """Copy single tokens from slot to slot in every layer."""
        for tensor in self.store:
            slots = tensor.flatten(1, 2)  # [layers, num_blocks * block_size, H_kv, D]
            slots[:, targets] = slots[:, sources]

    def _read(self, layer: int, step: PagedStep) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """All K and all V [S_b, H_kv, D] of each row."""
        lengths = step.batch.context_lens
        if self.backend == "reference":
            return self._split([[gather_blocks(tensor[layer], table, length)
                                 for table, length in zip(step.tables, lengths)] for tensor in self.store])
        # The same for all rows at once, into memory that every layer and step uses again: a fresh copy each time
        # would make the operating system find, clear and take back the pages (2.7 times as long as without a gather).
        blocks = torch.cat(step.tables)
        if not self._scratch or len(self._scratch[0]) < len(blocks):
            self._scratch = [tensor.new_empty(len(blocks), *tensor.shape[2:]) for tensor in self.store]
        rows = []
        for tensor, scratch in zip(self.store, self._scratch):
            gathered = torch.index_select(tensor[layer], 0, blocks, out=scratch[: len(blocks)])
            pages = gathered.split([len(table) for table in step.tables])
            rows.append([page.flatten(0, 1)[:length] for page, length in zip(pages, lengths)])
        return self._split(rows)

    def _split(self, rows: list[list[torch.Tensor]]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """K and V of each row out of what is stored of it."""
        spec = self.specs[0]
        return rows[0], [k[..., : spec.v_dim] for k in rows[0]] if spec.v_in_k else rows[1]
