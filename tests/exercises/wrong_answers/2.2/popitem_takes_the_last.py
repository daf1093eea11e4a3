"""Popitem takes the last."""

from minillm.cache import blocks
from minillm.cache.errors import CacheError, PoolExhausted

DIAGNOSIS = "evicts-the-newest"


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        if count > self.available:
            raise PoolExhausted("too many")
        taken = []
        for _ in range(count):
            if self.free:
                block = self.free.pop()
            else:
                block, _ = self.idle.popitem()
                self.cached.discard(block)
                self.on_evict(block)
            self.refs[block] = 1
            taken.append(block)
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
