"""Hashes first."""

from minillm.cache import prefix
from minillm.cache.prefix import hash_block


class HashIndexMatch(prefix.HashIndex):
    def match(self, token_ids, extra=""):
        size = self.pool.block_size
        pages = [tuple(token_ids[i : i + size]) for i in range(0, len(token_ids), size)]
        if pages:
            pages.pop()
        names = [b""]
        for page in pages:
            names.append(hash_block(names[-1], page, extra))
        entries = [self._find(name, parent, page, extra) for parent, name, page in zip(names, names[1:], pages)]
        n = entries.index(None) if None in entries else len(entries)
        return n * size, [entry.block for entry in entries[:n]]
