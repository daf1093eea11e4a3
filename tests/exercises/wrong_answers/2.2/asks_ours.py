"""Asks ours."""

from minillm.cache import blocks
from minillm.cache.errors import CacheError

DIAGNOSIS = "forbidden"


class BlockPoolAllocate(blocks.BlockPool):
    def allocate(self, count=1):
        return super().allocate(count)


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
