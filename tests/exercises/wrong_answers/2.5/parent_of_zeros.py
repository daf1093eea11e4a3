"""Parent of zeros."""

from minillm.cache import prefix
from minillm.cache.prefix import hash_block

DIAGNOSIS = "never-found"


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        blocks = []
        parent = bytes(32)
        size = self.pool.block_size
        for start in range(0, (len(token_ids) - 1) // size * size, size):
            page = tuple(token_ids[start : start + size])
            known = self._find(hash_block(parent, page, extra), parent, page, extra)
            if known is None:
                break
            blocks.append(known.block)
            parent = known.hash
        return len(blocks) * size, blocks
