"""Tells of all."""

from minillm.cache import blocks
from minillm.cache.errors import CacheError, PoolExhausted

DIAGNOSIS = "told-of-free-blocks"


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        if count > self.available:
            raise PoolExhausted(f"{count} blocks asked for")
        taken = []
        while len(taken) < count:
            if not self.free:
                block = next(iter(self.idle))
                self.uncache(block)
            taken.append(self.free.pop())
            self.on_evict(taken[-1])
            self.refs[taken[-1]] = 1
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
