"""Minus zero."""

from minillm.cache import blocks
from minillm.cache.errors import CacheError, PoolExhausted

DIAGNOSIS = "none-is-all"


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        if count > self.available:
            raise PoolExhausted("too many")
        while len(self.free) < count:
            block = next(iter(self.idle))
            self.on_evict(block)
            self.uncache(block)
        taken = self.free[-count:]
        del self.free[-count:]
        for block in taken:
            self.refs[block] = 1
        return taken


class BlockPoolRelease(blocks.BlockPool):
    def release(self, blocks):
        for block in blocks:
            if blocks.count(block) > self.refs[block]:
                raise CacheError(f"block {block} is not held so often")
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0 and block in self.cached:
                self.idle[block] = None
            elif self.refs[block] == 0:
                self.free.append(block)
