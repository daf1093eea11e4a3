"""From the other end."""

from minillm.cache import blocks
from minillm.cache.errors import CacheError, PoolExhausted


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        if len(self.free) + len(self.idle) < count:
            raise PoolExhausted(f"{count} asked for, {self.available} are there")
        taken = []
        while self.free and len(taken) < count:
            taken.append(self.free.pop(0))
        while len(taken) < count:
            block, _ = self.idle.popitem(last=False)
            self.cached.remove(block)
            self.on_evict(block)
            taken.append(block)
        for block in taken:
            self.refs[block] += 1
        return taken


class BlockPoolRelease(blocks.BlockPool):
    def release(self, blocks):
        left = list(self.refs)
        for block in blocks:
            left[block] -= 1
        if min(left) < 0:
            raise CacheError(f"{blocks} are not all held")
        self.refs = left
        for block in blocks[::-1]:
            if left[block] == 0 and block not in self.free and block not in self.idle:
                if block in self.cached:
                    self.idle[block] = None
                else:
                    self.free.insert(0, block)
