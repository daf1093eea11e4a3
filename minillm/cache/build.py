"""A paged cache from the names of its parts: how K and V are stored, and how equal beginnings are found."""

from __future__ import annotations

import torch

from minillm.cache import blocks, paged, prefix, quantized, radix, tables
from minillm.model.config import KVSpec

KV_DTYPES = ("auto", *quantized.CODECS)
PREFIX_INDEXES = ("hash", "radix", "none")


def check(block_size: int, kv_dtype: str, index: str) -> None:
    """Raises ValueError for a block size below 1, or a name that is none."""
    if not isinstance(block_size, int) or block_size < 1:
        raise ValueError(f"block_size is {block_size!r}: expected at least 1")
    for name, value, known in (("kv_cache_dtype", kv_dtype, KV_DTYPES), ("prefix_index", index, PREFIX_INDEXES)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}: expected one of {', '.join(known)}")


def block_bytes(specs: list[KVSpec], block_size: int, kv_dtype: str = "auto",
                dtype: torch.dtype = torch.float32) -> int:
    """Bytes of one block in all layers, codes and scales: those of a cache of one block, of which no memory is made."""
    return paged_cache(specs, 1, block_size, kv_dtype, dtype, "meta", index="none").bytes


def block_tables(num_blocks: int, block_size: int, index: str) -> tables.BlockTables:
    """A pool, its tables and the prefix index of that name: what a scheduler needs, and no tensor."""
    pool = blocks.BlockPool(num_blocks, block_size)
    finder = {"hash": prefix.HashIndex, "radix": radix.RadixIndex, "none": lambda pool: None}[index](pool)
    return tables.BlockTables(pool, finder)


def paged_cache(specs: list[KVSpec], num_blocks: int, block_size: int = 16, kv_dtype: str = "auto",
                dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", backend: str = "sdpa",
                index: str = "hash") -> paged.PagedKVCache:
    """A cache of `num_blocks` blocks, empty. kv_dtype: one of KV_DTYPES, 'auto' keeps `dtype`. index: one of
    PREFIX_INDEXES. Raises ValueError as `check` does.
    """
    check(block_size, kv_dtype, index)
    made = block_tables(num_blocks, block_size, index)
    if backend == "triton" and kv_dtype == "auto":
        from minillm.cache import triton_paged  # needs Triton

        return triton_paged.TritonPagedKVCache(specs, made, dtype, device)
    if kv_dtype == "auto":
        return paged.PagedKVCache(specs, made, dtype, device, backend)
    return quantized.QuantizedKVCache(specs, made, dtype, device, backend, kv_dtype)
