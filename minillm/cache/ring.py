"""A cache for sliding windows: it keeps what a window can still see, in a ring, however long the text becomes.

In a model whose layers all look back W tokens at most, a token is of no use to those that come W or more after it (the
rolling buffer of Mistral, Jiang et al. 2023). One tensor per layer for K, one for V, [slots, W + slack, H_kv, D]: the
token at position p lies at p mod (W + slack), on top of the one W + slack before it. The slack is for going back: to
cut a text short is to look, from an earlier token, at what lies before it, and that must not be overwritten yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minillm.attention import backends
from minillm.cache.base import Step
from minillm.cache.errors import CacheError
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


@dataclass
class RingStep(Step):
    """`slots[b]` is where row b's sequence lives."""

    slots: list[int]


class RingKVCache:
    """The last `window + slack` tokens of up to `max_seqs` sequences of any length, all memory taken at once.

    Windows may differ from layer to layer; they count the query itself, so a token looks at window - 1 earlier ones.
    Raises ValueError for a layer without a window, sizes below 1 (slack: 0) or an unknown backend; CacheError from
    `begin` when a sequence does not continue where it ended or finds no free slot, and from `truncate` and `keep` when
    the next token would look at one that is overwritten.
    """

    def __init__(self, specs: list[KVSpec], max_seqs: int, slack: int = 16, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", backend: str = "sdpa") -> None:
        for name, value, least in (("max_seqs", max_seqs, 1), ("slack", slack, 0)):
            if value < least:
                raise ValueError(f"{name} is {value}: expected at least {least}")
        for layer, spec in enumerate(specs):
            if spec.window is None or spec.window < 1:
                raise ValueError(f"layer {layer} has the window {spec.window}: expected at least 1, a ring forgets")
        self.specs = specs
        self.slack = slack
        self.backend = backends.check_backend(backend)
        self.capacities = [s.window + slack for s in specs]
        rings = list(zip(specs, self.capacities))
        self.k = [torch.empty(max_seqs, c, s.heads, s.k_dim, dtype=dtype, device=device) for s, c in rings]
        self.v = [torch.empty(max_seqs, c, s.heads, s.v_dim, dtype=dtype, device=device) for s, c in rings]
        self._free = list(range(max_seqs))[::-1]
        self._slots: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._oldest: dict[int, list[int]] = {}  # for each layer, the first position that is not overwritten

    @property
    def bytes(self) -> int:
        """Memory of K and V, which no text makes larger."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.k, *self.v))

    def begin(self, batch: Batch) -> RingStep:
        new = [seq for seq in batch.seq_ids if seq not in self._slots]
        if len(new) > len(self._free):
            raise CacheError(f"{len(new)} new sequences find {len(self._free)} free slots: expected no more than that")
        for seq, added, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            if total - added != self.length(seq):
                raise CacheError(f"sequence {seq} continues at token {total - added}: expected {self.length(seq)}, "
                                 "where it ended")
        for seq in new:
            self._slots[seq], self._oldest[seq] = self._free.pop(), [0] * len(self.specs)
        for seq, total in zip(batch.seq_ids, batch.context_lens):
            self._lengths[seq] = total
            # max: a text that was cut short and grows again does not get back what was overwritten before the cut
            self._oldest[seq] = [max(held, total - c) for held, c in zip(self._oldest[seq], self.capacities)]
        return RingStep(batch, self, [self._slots[seq] for seq in batch.seq_ids])

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: RingStep) -> torch.Tensor:
        spec, batch, capacity = self.specs[layer], step.batch, self.capacities[layer]
        keys, values = [], []
        rows = zip(step.slots, batch.context_lens, k.split(batch.query_lens), v.split(batch.query_lens))
        for slot, total, new_k, new_v in rows:
            start = total - len(new_k)
            old = torch.arange(max(0, start - spec.window + 1), start, device=k.device) % capacity
            last = torch.arange(max(start, total - capacity), total, device=k.device)  # no place twice
            for cache, new, seen in ((self.k[layer], new_k, keys), (self.v[layer], new_v, values)):
                # Read before writing: a chunk's last tokens may lie on top of what its first ones look at. The chunk
                # itself is attended to from where it came, since it may be longer than the ring.
                seen.append(torch.cat([cache[slot, old], new]))  # [min(W - 1, start) + added, H_kv, D]
                cache[slot, last % capacity] = new[last - start]
        return backends.attend(self.backend, q, keys, values, batch.query_lens, spec.scale, spec.window, step.masks)

    def length(self, seq: int) -> int:
        """Tokens seen of a sequence, of which the ring holds the last ones."""
        return self._lengths.get(seq, 0)

    def truncate(self, seq: int, n: int) -> None:
        """Keep only the first n tokens: all are dropped, or few enough that n's window is not yet overwritten."""
        self._known(seq)
        length = self._lengths[seq]
        least = max((held + s.window - 1 for held, s in zip(self._oldest[seq], self.specs)
                     if held > 0 and s.window > 1), default=0)  # a window of 1 looks at nothing old
        if n != 0 and not least <= n <= length:
            expected = f"0 or {least} to {length}" if least else f"0 to {length}"
            raise CacheError(f"sequence {seq} cut to {n} tokens: expected {expected}, with a slack of {self.slack}")
        self._lengths[seq] = n
        if n == 0:
            self._oldest[seq] = [0] * len(self.specs)

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        """Keep only these tokens, moved to 0, 1, 2, …: the last window - 1 of them must be held in each layer."""
        self._known(seq)
        kept, oldest = list(positions), self._oldest[seq]
        if kept != sorted(set(kept)) or (kept and not 0 <= kept[0] <= kept[-1] < self._lengths[seq]):
            raise CacheError(f"sequence {seq} told to keep positions {kept}: expected ascending ones below "
                             f"{self._lengths[seq]}")
        lost = [bisect_left(kept, held) for held in oldest]  # kept ones that are overwritten, by layer
        for spec, held, count in zip(self.specs, oldest, lost):
            if count > max(0, len(kept) - spec.window + 1):
                raise CacheError(f"sequence {seq} told to keep positions {kept}: expected the last {spec.window - 1} "
                                 f"of them at {held} or later, with a slack of {self.slack}")
        slot = self._slots[seq]
        for layer, (capacity, count) in enumerate(zip(self.capacities, lost)):
            source = [position % capacity for position in kept[count:]]
            target = [position % capacity for position in range(count, len(kept))]
            for cache in (self.k[layer], self.v[layer]):
                cache[slot, target] = cache[slot, source]  # indexing with a list copies before it writes
        self._lengths[seq], self._oldest[seq] = len(kept), lost

    def free(self, seq: int) -> None:
        self._known(seq)
        self._free.append(self._slots.pop(seq))
        del self._lengths[seq], self._oldest[seq]

    def _known(self, seq: int) -> None:
        if seq not in self._slots:
            raise CacheError(f"sequence {seq} is not in the cache: expected one of {sorted(self._slots)}")
