"""Prefix caching by hashes: a block is found again by what it holds and by everything before it.

hash(block i) = SHA-256(hash(block i-1), the block's token ids, an extra key). K and V of a token depend on all tokens
before it, so equal tokens are not enough: the whole chain must agree. Only full blocks have a hash. A hit is believed
only after parent and token ids have been compared, so that two texts with one hash never share.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from minillm.cache.blocks import BlockPool


class PrefixIndex(Protocol):
    """What finds the blocks of a text that starts like an earlier one: hashes here, a tree in `radix`."""

    def match(self, token_ids: Sequence[int], extra: str = "") -> tuple[int, list[int]]:
        """(n, blocks): the first n tokens are in these blocks; n is less than all of them."""

    def insert(self, token_ids: Sequence[int], table: Sequence[int], extra: str = "",
               closing: bool = False) -> list[int]:
        """Learn that `table` holds these tokens; returns for each full block the one to use for it."""

    def evict(self, block: int) -> None:
        """Forget a block: the pool needs it."""

    def metadata_bytes(self) -> int:
        """Host memory of the index, counting every object it owns."""


def hash_block(parent: bytes, token_ids: Sequence[int], extra: str) -> bytes:
    """SHA-256 over the hash of the block before (b"" for the first), these tokens, and what must agree besides them.

    Token ids take 8 bytes each: fewer would let two vocabularies' worth of texts collide. The three parts cannot run
    into one another: the parent is 0 or 32 bytes by the count in front, the extra key comes last.
    """
    digest = hashlib.sha256()
    digest.update(len(parent).to_bytes(8, "little") + parent)
    digest.update(len(token_ids).to_bytes(8, "little") + array("q", token_ids).tobytes())
    digest.update(extra.encode())
    return digest.digest()


@dataclass(frozen=True)
class _Known:
    """One block in the index, with what a hit is checked against."""

    block: int
    hash: bytes
    parent: bytes
    token_ids: tuple[int, ...]
    extra: str


class HashIndex:
    """Full blocks by their chained hash (vLLM's way): one dictionary, O(1) a block."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        pool.on_evict = self.evict
        self.by_hash: dict[bytes, _Known] = {}
        self.by_block: dict[int, _Known] = {}

    def match(self, token_ids: Sequence[int], extra: str = "") -> tuple[int, list[int]]:
        """(n, blocks): the longest known chain of full blocks at the start of token_ids, always short of all of them.

        The last token is never taken from the cache: its logits choose the next one, so it has to be computed. The
        hash of a block is hash_block(parent, page, extra): parent is the hash of the block before, b"" for the first;
        page is its tokens, a tuple. self._find(that hash, parent, page, extra) gives what is known under it, with its
        `block` and its `hash`; None if that is nothing, or another text that happens to have the same hash.
        """
        blocks: list[int] = []
        parent = b""
        size = self.pool.block_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            page = tuple(token_ids[start : start + size])
            known = self._find(hash_block(parent, page, extra), parent, page, extra)
            if known is None:
                break
            blocks.append(known.block)
            parent = known.hash
        return len(blocks) * size, blocks

    def insert(self, token_ids: Sequence[int], table: Sequence[int], extra: str = "",
               closing: bool = False) -> list[int]:
        size = self.pool.block_size
        full = len(token_ids) // size
        first = self._registered(table[:full])
        blocks, parent = list(table[:first]), self.by_block[table[first - 1]].hash if first else b""
        for page in range(first, full):
            tokens = tuple(token_ids[page * size : (page + 1) * size])
            digest = hash_block(parent, tokens, extra)
            known = self._find(digest, parent, tokens, extra)
            if known is None and digest in self.by_hash:
                break  # a collision: the text before keeps the place, this one stays uncached
            if known is None:
                known = _Known(table[page], digest, parent, tokens, extra)
                self.by_hash[digest] = self.by_block[known.block] = known
                self.pool.cache(known.block)
            blocks.append(known.block)
            parent = digest
        return blocks

    def evict(self, block: int) -> None:
        del self.by_hash[self.by_block.pop(block).hash]

    def metadata_bytes(self) -> int:
        total = sys.getsizeof(self.by_hash) + sys.getsizeof(self.by_block)
        for known in self.by_hash.values():
            total += sys.getsizeof(known.hash) + sys.getsizeof(known.token_ids) + _object_bytes(known)
        return total

    def _registered(self, table: Sequence[int]) -> int:
        """How many blocks at the start of a table are in the index already: as a rule all but the newest."""
        first = len(table)
        while first and table[first - 1] not in self.by_block:
            first -= 1
        return first

    def _find(self, digest: bytes, parent: bytes, page: tuple[int, ...], extra: str) -> _Known | None:
        known = self.by_hash.get(digest)
        if known is None or (known.parent, known.token_ids, known.extra) != (parent, page, extra):
            return None
        return known


def _object_bytes(known: _Known) -> int:
    return sys.getsizeof(known) + sys.getsizeof(known.__dict__)
