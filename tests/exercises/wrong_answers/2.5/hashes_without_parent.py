"""Hashes without parent."""

from minillm.cache import prefix
from minillm.cache.prefix import hash_block

DIAGNOSIS = "no-chain"


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        blocks = []
        size = self.pool.block_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            page = tuple(token_ids[start : start + size])
            known = self._find(hash_block(b"", page, extra), b"", page, extra)
            if known is None:
                break
            blocks.append(known.block)
        return len(blocks) * size, blocks
