"""A cache that reserves the longest possible sequence for everybody: simple, fast to read, and wasteful.

One tensor per layer for K and one for V, [slots, H_kv, max_len, D]: each head's keys lie one after another, so that
attention streams through them. A sequence takes a free slot the first time it is seen and keeps it until `free`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minillm.attention import backends
from minillm.cache.base import Step
from minillm.cache.errors import CacheError
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


@dataclass
class ContiguousStep(Step):
    """`slots[b]` is where row b's sequence lives."""

    slots: list[int]


class ContiguousKVCache:
    """K and V of up to `max_seqs` sequences of up to `max_len` tokens each, all memory taken at once.

    Raises ValueError for sizes below 1 or an unknown backend; CacheError from `begin` when a sequence would grow past
    `max_len`, does not continue where it ended, or finds no free slot.
    """

    def __init__(
        self,
        specs: list[KVSpec],
        max_seqs: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        backend: str = "sdpa",
    ) -> None:
        for name, value in (("max_seqs", max_seqs), ("max_len", max_len)):
            if value < 1:
                raise ValueError(f"{name} is {value}: expected at least 1")
        self.specs = specs
        self.max_len = max_len
        self.backend = backends.check_backend(backend)
        # empty, not zeros: the operating system hands pages out as they are first written
        self.k = [torch.empty(max_seqs, s.heads, max_len, s.k_dim, dtype=dtype, device=device) for s in specs]
        own_v = [None if s.v_in_k else torch.empty(max_seqs, s.heads, max_len, s.v_dim, dtype=dtype, device=device)
                 for s in specs]
        self.stored = [*self.k, *(v for v in own_v if v is not None)]  # every tensor once
        self.v = [k[..., : s.v_dim] if v is None else v for k, v, s in zip(self.k, own_v, specs)]
        self._free = list(range(max_seqs))[::-1]
        self._slots: dict[int, int] = {}
        self._lengths: dict[int, int] = {}

    def begin(self, batch: Batch) -> ContiguousStep:
        new = [seq for seq in batch.seq_ids if seq not in self._slots]
        if len(new) > len(self._free):
            raise CacheError(f"{len(new)} new sequences find {len(self._free)} free slots: expected no more than that")
        for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            if total > self.max_len:
                raise CacheError(f"sequence {seq} would hold {total} tokens: expected at most {self.max_len}")
            if total - added != self.length(seq):
                raise CacheError(f"sequence {seq} continues at token {total - added}: expected {self.length(seq)}, "
                                 "where it ended")
        for seq in new:
            self._slots[seq] = self._free.pop()
        self._lengths.update(zip(batch.seq_ids, batch.context_lens))
        return ContiguousStep(batch, self, [self._slots[seq] for seq in batch.seq_ids])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
               step: ContiguousStep) -> torch.Tensor:
        spec, batch = self.specs[layer], step.batch
        keys, values = [], []
        start = 0
        for slot, added, total in zip(step.slots, batch.query_lens, batch.context_lens):
            slot_k, slot_v = self.k[layer][slot], self.v[layer][slot]  # [H_kv, max_len, D]
            slot_k[:, total - added : total] = k[start : start + added].transpose(0, 1)
            slot_v[:, total - added : total] = v[start : start + added].transpose(0, 1)
            keys.append(slot_k[:, :total].transpose(0, 1))  # [S, H_kv, D]
            values.append(slot_v[:, :total].transpose(0, 1))
            start += added
        return backends.attend(self.backend, q, keys, values, batch.query_lens, spec.scale, spec.window, step.masks)

    def length(self, seq: int) -> int:
        return self._lengths.get(seq, 0)

    def truncate(self, seq: int, n: int) -> None:
        self._known(seq)
        if not 0 <= n <= self._lengths[seq]:
            raise CacheError(f"sequence {seq} cut to {n} tokens: expected 0 to {self._lengths[seq]}")
        self._lengths[seq] = n

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        self._known(seq)
        kept = list(positions)
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._lengths[seq]):
            raise CacheError(f"sequence {seq} told to keep positions {kept}: expected ascending ones below "
                             f"{self._lengths[seq]}")
        slot = self._slots[seq]
        for cache in self.stored:
            # indexing with a list copies, so moving down over itself is safe
            cache[slot, :, : len(kept)] = cache[slot][:, kept]
        self._lengths[seq] = len(kept)

    def free(self, seq: int) -> None:
        self._known(seq)
        self._free.append(self._slots.pop(seq))
        del self._lengths[seq]

    def _known(self, seq: int) -> None:
        if seq not in self._slots:
            raise CacheError(f"sequence {seq} is not in the cache: expected one of {sorted(self._slots)}")
