"""Half written."""

from minillm.cache import blocks
from minillm.cache.errors import PoolExhausted

DIAGNOSIS = "not-written"


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        if count > self.available:
            raise PoolExhausted(f"{count} blocks asked for")
        taken = []
        while len(taken) < count:
            if not self.free:
                block = next(iter(self.idle))
                self.on_evict(block)
                self.uncache(block)
            taken.append(self.free.pop())
            self.refs[taken[-1]] = 1
        return taken


class BlockPoolRelease(blocks.BlockPool):
    def release(self, blocks):
        raise NotImplementedError("exercise 2.2")
