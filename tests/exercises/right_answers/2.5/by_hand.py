"""By hand."""

from minillm.cache import prefix
from minillm.cache.prefix import hash_block


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        found, parent, size = [], b"", self.pool.block_size
        while (len(found) + 1) * size < len(token_ids):
            page = tuple(token_ids[len(found) * size : (len(found) + 1) * size])
            parent, before = hash_block(parent, page, extra), parent
            entry = self.by_hash.get(parent)
            if entry is None or entry.token_ids != page or entry.parent != before or entry.extra != extra:
                return len(found) * size, found
            found += [entry.block]
        return len(found) * size, found
