"""By counting."""

from collections import Counter

from minillm.cache import blocks
from minillm.cache.errors import CacheError, PoolExhausted


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        missing = count - len(self.free)
        if missing > len(self.idle):
            raise PoolExhausted(f"{missing} blocks are missing")
        for block in list(self.idle)[: max(0, missing)]:
            self.uncache(block)
            self.on_evict(block)
        split = len(self.free) - count
        taken = self.free[split:]
        del self.free[split:]
        for block in taken:
            self.refs[block] = 1
        return taken


class BlockPoolRelease(blocks.BlockPool):
    def release(self, blocks):
        times = Counter(blocks)
        for block in times:
            if times[block] > self.refs[block]:
                raise CacheError(f"block {block} is released {times[block]} times, and held {self.refs[block]} times")
        for block in reversed(blocks):
            times[block] -= 1
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            (self.idle.setdefault if block in self.cached else lambda b, _: self.free.append(b))(block, None)
