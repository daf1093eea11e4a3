"""A cache of constant size for a model without windows: the first tokens of the text, and the last ones.

StreamingLLM (Xiao et al. 2023): a model trained on whole texts puts the attention that it needs nowhere on the first
tokens, its attention sinks, so a window over the last W tokens alone breaks it, and a window beside the first few does
not. The model is unchanged; what to forget is the cache's affair. Each layer has [slots, sinks + W, H_kv, D] for K and
for V: positions below `sinks` lie where they are, later ones in a ring of W behind them.

Keys keep the rotation of their place in the text. The paper counts places anew inside the cache, which lets a text
outgrow the length that the model was trained for; this cache does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minillm.attention import variants
from minillm.cache.base import Step
from minillm.cache.errors import CacheError
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


@dataclass
class SinkRow:
    """One row of a step, the same in all layers. `held` [n]: places of the earlier tokens that may be seen; `visible`
    [S_q, n + S_q]; `kept` [m]: which new tokens to store, and `places` [m] where."""

    slot: int
    held: torch.Tensor
    visible: torch.Tensor
    kept: torch.Tensor
    places: torch.Tensor


@dataclass
class SinkStep(Step):
    rows: list[SinkRow]


class SinkKVCache:
    """The first `sinks` and the last `window` tokens of up to `max_seqs` sequences, all memory taken at once.

    A token sees `window` tokens, itself included, and the sinks. Raises ValueError for sizes below 1 (sinks: 0) or a
    layer with a window of its own; CacheError from `begin` when a sequence does not continue where it ended or finds no
    free slot, and from `truncate` and `keep` once tokens of the sequence were overwritten.
    """

    def __init__(self, specs: list[KVSpec], max_seqs: int, window: int, sinks: int = 4,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        for name, value, least in (("max_seqs", max_seqs, 1), ("window", window, 1), ("sinks", sinks, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}: expected at least {least}")
        for layer, spec in enumerate(specs):
            if spec.window is not None:
                raise ValueError(f"layer {layer} has the window {spec.window}: expected none beside the cache's own")
        self.specs, self.window, self.sinks = specs, window, sinks
        self.device = torch.device(device)
        size = (max_seqs, sinks + window)
        self.k = [torch.empty(*size, s.heads, s.k_dim, dtype=dtype, device=device) for s in specs]
        self.v = [torch.empty(*size, s.heads, s.v_dim, dtype=dtype, device=device) for s in specs]
        self._free = list(range(max_seqs))[::-1]
        self._slots: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._longest: dict[int, int] = {}  # that the sequence has been: beyond sinks + window, tokens are lost

    @property
    def bytes(self) -> int:
        """Memory of K and V, which no text makes larger."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.k, *self.v))

    def begin(self, batch: Batch) -> SinkStep:
        new = [seq for seq in batch.seq_ids if seq not in self._slots]
        if len(new) > len(self._free):
            raise CacheError(f"{len(new)} new sequences find {len(self._free)} free slots: expected no more than that")
        for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            if total - added != self.length(seq):
                raise CacheError(f"sequence {seq} continues at token {total - added}: expected {self.length(seq)}, "
                                 "where it ended")
        for seq in new:
            self._slots[seq], self._longest[seq] = self._free.pop(), 0
        for seq, total in zip(batch.seq_ids, batch.context_lens):
            self._lengths[seq], self._longest[seq] = total, max(total, self._longest[seq])
        rows = [self._row(self._slots[seq], total - added, total)
                for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens)]
        return SinkStep(batch, self, rows)

    def _row(self, slot: int, start: int, total: int) -> SinkRow:
        """The row that brings the tokens start … total - 1 of a sequence."""
        earlier = torch.arange(start, device=self.device)
        held = earlier[(earlier < self.sinks) | (earlier > start - self.window)]  # [n] positions
        new = torch.arange(start, total, device=self.device)  # [S_q]
        kept = ((new < self.sinks) | (new >= total - self.window)).nonzero().flatten()  # no place twice
        visible = variants.sink_mask(new, torch.cat([held, new]), self.window, self.sinks)  # [S_q, n + S_q]
        return SinkRow(slot, self._places(held), visible, kept, self._places(new[kept]))

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        around = self.sinks + (positions - self.sinks) % self.window
        return torch.where(positions < self.sinks, positions, around)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: SinkStep) -> torch.Tensor:
        outputs, lens = [], step.batch.query_lens
        for row, new_q, new_k, new_v in zip(step.rows, q.split(lens), k.split(lens), v.split(lens)):
            seen = []
            for cache, new in ((self.k[layer], new_k), (self.v[layer], new_v)):
                # read before writing: a chunk's last tokens may lie on top of what its first ones look at
                seen.append(torch.cat([cache[row.slot, row.held], new]))  # [n + S_q, H_kv, D]
                cache[row.slot, row.places] = new[row.kept]
            outputs.append(variants.grouped_query(new_q, *seen, self.specs[layer].scale, row.visible))
        return torch.cat(outputs)  # [T, H, D_v]

    def length(self, seq: int) -> int:
        """Tokens seen of a sequence, of which the first and the last are held."""
        return self._lengths.get(seq, 0)

    def truncate(self, seq: int, n: int) -> None:
        """Keep only the first n tokens: all, none, or any number while none is overwritten."""
        self._known(seq)
        length = self._lengths[seq]
        if not 0 <= n <= length or (n not in (0, length) and self._lost(seq)):
            expected = f"0 or {length}, the rest is overwritten" if self._lost(seq) else f"0 to {length}"
            raise CacheError(f"sequence {seq} cut to {n} tokens: expected {expected}")
        self._lengths[seq] = n
        self._longest[seq] = self._longest[seq] if n else 0

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        """Keep only these tokens, moved to 0, 1, 2, …, while none is overwritten."""
        self._known(seq)
        kept = list(positions)
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._lengths[seq]):
            raise CacheError(f"sequence {seq} told to keep positions {kept}: expected ascending ones below "
                             f"{self._lengths[seq]}")
        if self._lost(seq):
            raise CacheError(f"sequence {seq} told to keep positions {kept}: expected none, tokens are overwritten")
        slot = self._slots[seq]
        for cache in (*self.k, *self.v):
            cache[slot, : len(kept)] = cache[slot, kept]  # indexing with a list copies before it writes
        self._lengths[seq] = self._longest[seq] = len(kept)

    def free(self, seq: int) -> None:
        self._known(seq)
        self._free.append(self._slots.pop(seq))
        del self._lengths[seq], self._longest[seq]

    def _lost(self, seq: int) -> bool:
        return self._longest[seq] > self.sinks + self.window

    def _known(self, seq: int) -> None:
        if seq not in self._slots:
            raise CacheError(f"sequence {seq} is not in the cache: expected one of {sorted(self._slots)}")
