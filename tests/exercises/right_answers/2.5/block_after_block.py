"""Block after block."""

from minillm.cache import prefix
from minillm.cache.prefix import hash_block


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        size = self.pool.block_size

        def further(start, parent):
            if start + size >= len(token_ids):
                return []
            page = tuple(token_ids[start : start + size])
            known = self._find(hash_block(parent, page, extra), parent, page, extra)
            return [] if known is None else [known.block, *further(start + size, known.hash)]

        blocks = further(0, b"")
        return size * len(blocks), blocks
