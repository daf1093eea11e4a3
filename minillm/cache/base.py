"""What a cache promises to the model, and the cache that keeps nothing.

A step is `step = cache.begin(batch)`, then `cache.attend(layer, q, k, v, step)` once for each layer, in order. `begin`
does whatever all layers share, once; it is the only place that can refuse, and a refusal leaves the cache as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from minillm.attention import backends
from minillm.cache.errors import CacheError
from minillm.model.batch import Batch
from minillm.model.config import KVSpec


@dataclass
class Step:
    """One forward pass under way: the batch, the cache its layers attend through, the masks they share."""

    batch: Batch
    cache: KVCache
    masks: backends.Masks = field(default_factory=dict, kw_only=True)


class KVCache(Protocol):
    """Every cache has this face; the model knows no other."""

    def begin(self, batch: Batch) -> Step:
        """Make room for the batch's tokens. Raises CacheError, with nothing changed, if it cannot."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Step) -> torch.Tensor:
        """Store k, v [T, H_kv, D] of `layer`, then attend q [T, H, D] to all that is stored: [T, H, D_v]."""

    def length(self, seq: int) -> int:
        """Tokens kept of a sequence; 0 for one never seen."""

    def truncate(self, seq: int, n: int) -> None:
        """Keep only the first n tokens of a sequence."""

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        """Keep only these tokens of a sequence (ascending positions), moved together to 0, 1, 2, …"""

    def free(self, seq: int) -> None:
        """Forget a sequence and give its memory back."""


class NoCache:
    """Keeps nothing: every step must bring its sequences whole, and recomputes them (the naive loop)."""

    def __init__(self, specs: list[KVSpec], backend: str = "sdpa") -> None:
        self.specs = specs
        self.backend = backends.check_backend(backend)

    def begin(self, batch: Batch) -> Step:
        for seq, new, total in zip(batch.seq_ids, batch.query_lens, batch.context_lens):
            if new != total:
                raise CacheError(f"sequence {seq} brings {new} of its {total} tokens: expected all, nothing is cached")
        return Step(batch, self)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Step) -> torch.Tensor:
        spec, lens = self.specs[layer], step.batch.query_lens
        return backends.attend(self.backend, q, list(k.split(lens)), list(v.split(lens)), lens, spec.scale, spec.window,
                               step.masks)

    def length(self, seq: int) -> int:
        return 0

    def truncate(self, seq: int, n: int) -> None:
        raise CacheError(f"sequence {seq} is not cached: expected a cache to truncate")

    def keep(self, seq: int, positions: Sequence[int]) -> None:
        raise CacheError(f"sequence {seq} is not cached: expected a cache to keep positions of")

    def free(self, seq: int) -> None:
        pass
