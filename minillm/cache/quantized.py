"""K and V in fewer bits: INT8, FP8 or INT4 codes, and the scales that turn them back.

int8, fp8, int4   one scale for each head of each block
int4-kivi         K: one for each channel of a head and block; V: one for each token of a head (Liu et al. 2024). A few
                  channels of K are far larger than the rest, in every token; with a scale of their own they do not
                  coarsen the others.

A token that joins a block may be larger than all that was there, and then the block's scale no longer fits it. So a
write decodes the blocks it touches, puts the new tokens in, and encodes them again; a value that is on the grid and
whose scale stays comes back as it was. A read decodes them to the model's dtype: that saves memory, not time. (FP8: few
CPUs multiply it, so it too is decoded.) With attention 'triton' steps of decode rows alone read INT8 and FP8 codes as
they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from minillm.cache.paged import PagedKVCache, PagedStep
from minillm.cache.tables import BlockTables
from minillm.model.batch import Batch
from minillm.model.config import KVSpec
from minillm.numerics import grid

HEAD, CHANNEL, TOKEN = (1, 3), (1,), (3,)  # dimensions of [blocks, block_size, H_kv, D] that share a scale


@dataclass(frozen=True)
class Codec:
    """How blocks [n, block_size, H_kv, D] become tensors of codes and scales [n, …], and come back in a dtype."""

    encode: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    decode: Callable[[Sequence[torch.Tensor], torch.dtype], torch.Tensor]


def encode_int8(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grid.symmetric(blocks, 8, HEAD)


def decode_int8(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    codes, scale = parts
    return codes.to(dtype) * scale


def encode_fp8(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scale = grid.to_fp8(blocks, HEAD)
    return codes.view(torch.uint8), scale  # as bytes: not every operation on tensors knows FP8


def decode_fp8(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    codes, scale = parts
    return codes.view(grid.FP8).to(dtype) * scale


def encode_int4(blocks: torch.Tensor, group: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Scales in float16, since small groups have many of them."""
    codes, scale, low = grid.asymmetric(blocks, 4, group)
    return grid.pack_int4(codes), scale.half(), low.half()


def decode_int4(parts: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    packed, scale, low = parts
    return grid.unpack_int4(packed).to(dtype) * scale.to(dtype) + low.to(dtype)


INT8, FP8 = Codec(encode_int8, decode_int8), Codec(encode_fp8, decode_fp8)
INT4 = {group: Codec(partial(encode_int4, group=group), decode_int4) for group in (HEAD, CHANNEL, TOKEN)}
CODECS = {  # name -> how K is kept, how V is kept
    "int8": (INT8, INT8),
    "fp8": (FP8, FP8),
    "int4": (INT4[HEAD], INT4[HEAD]),
    "int4-kivi": (INT4[CHANNEL], INT4[TOKEN]),
}


@dataclass
class Places:
    """Where tokens go: the `blocks` [n] they touch, and `rows` [T], each token's row among those blocks' tokens.

    `written` [n, block_size]: the slots that hold a token afterwards. A sequence grows at its end, so these are the
    slots up to the last one given; what lies behind it is left over from an earlier holder and must not set the scale.
    """

    blocks: torch.Tensor
    rows: torch.Tensor
    written: torch.Tensor


def find_places(slots: torch.Tensor, block_size: int) -> Places:
    """The places of the tokens of slots [T] int64."""
    blocks, which = torch.unique(slots // block_size, return_inverse=True)
    offsets = slots % block_size
    last = torch.zeros_like(blocks).scatter_reduce(0, which, offsets, "amax")  # [n]
    written = torch.arange(block_size, device=slots.device) <= last[:, None]  # [n, block_size]
    return Places(blocks, which * block_size + offsets, written)


@dataclass
class QuantizedStep(PagedStep):
    places: Places


class QuantizedKVCache(PagedKVCache):
    """A paged cache whose blocks hold codes. `codec`: one of CODECS.

    Raises ValueError as PagedKVCache does, for an unknown codec, or for an odd head size with INT4.
    """

    def __init__(self, specs: list[KVSpec], tables: BlockTables, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", backend: str = "sdpa", codec: str = "int8") -> None:
        if codec not in CODECS:
            raise ValueError(f"codec is {codec!r}: expected one of {', '.join(CODECS)}")
        if any(spec.v_in_k for spec in specs):
            raise ValueError(f"codec is {codec!r} where V is a part of K: expected none, kv_cache_dtype 'auto'")
        odd = [dim for spec in specs for dim in (spec.k_dim, spec.v_dim) if dim % 2]
        if codec.startswith("int4") and odd:
            raise ValueError(f"heads keep {odd[0]} values: expected an even number, two INT4 codes share a byte")
        if backend == "triton":
            from minillm.cache import triton_paged  # needs Triton

            triton_paged.check(specs, device)
        self.codecs = CODECS[codec]
        self.in_place = backend == "triton" and self.codecs in ((INT8, INT8), (FP8, FP8))
        self.stores: list[list[torch.Tensor]] = []  # codes and scales of K, and of V
        super().__init__(specs, tables, dtype, device, backend)

    def begin(self, batch: Batch) -> QuantizedStep:
        step = super().begin(batch)
        places = find_places(step.slots, self.pool.block_size)
        return QuantizedStep(step.batch, step.cache, step.slots, step.tables, places)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
               step: QuantizedStep) -> torch.Tensor:
        if not self.in_place or max(step.batch.query_lens) > 1:
            return super().attend(layer, q, k, v, step)
        from minillm.cache import triton_paged

        self._write(layer, step, k, v)
        stores = [[part[layer] for part in store] for store in self.stores]
        return triton_paged.decode_codes(q, stores, step, self.specs[layer])

    def _allocate(self) -> list[torch.Tensor]:
        """Codes and scales, [layers, num_blocks, …] each."""
        spec, pool = self.specs[0], self.pool
        for codec, dim in zip(self.codecs, (spec.k_dim, spec.v_dim)):
            one = codec.encode(torch.zeros(1, pool.block_size, spec.heads, dim, dtype=self.dtype))
            self.stores.append([part.new_empty(len(self.specs), pool.num_blocks, *part.shape[1:], device=self.device)
                                for part in one])
        return [*self.stores[0], *self.stores[1]]

    def _write(self, layer: int, step: QuantizedStep, k: torch.Tensor, v: torch.Tensor) -> None:
        for kind, new in enumerate((k, v)):
            self._insert(kind, layer, step.places, new)

    def _insert(self, kind: int, layer: int, places: Places, new: torch.Tensor) -> None:
        """Put tokens new [T, H_kv, D] into their blocks, and encode those anew. kind: 0 for K, 1 for V."""
        old = self._decode(kind, layer, places.blocks)  # [n, block_size, H_kv, D]
        blocks = torch.where(places.written[:, :, None, None], old, 0)
        blocks.flatten(0, 1)[places.rows] = new
        for part, encoded in zip(self.stores[kind], self.codecs[kind].encode(blocks)):
            part[layer, places.blocks] = encoded

    def _decode(self, kind: int, layer: int, blocks: torch.Tensor) -> torch.Tensor:
        return self.codecs[kind].decode([part[layer, blocks] for part in self.stores[kind]], self.dtype)

    def _move(self, sources: list[int], targets: list[int]) -> None:
        size = self.pool.block_size
        slots = torch.tensor(sources, device=self.device)
        places = find_places(torch.tensor(targets, device=self.device), size)
        for layer in range(len(self.specs)):
            for kind in (0, 1):
                pages = self._decode(kind, layer, slots // size)  # [T, block_size, H_kv, D]
                self._insert(kind, layer, places, pages[torch.arange(len(slots)), slots % size])

    def _read(self, layer: int, step: QuantizedStep) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        blocks, lengths = torch.cat(step.tables), [len(table) for table in step.tables]
        keys, values = ([page.flatten(0, 1)[:length] for page, length in zip(
            self._decode(kind, layer, blocks).split(lengths), step.batch.context_lens)] for kind in (0, 1))
        return keys, values
