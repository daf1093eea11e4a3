"""Memory in blocks of fixed size: who holds which, and who may be overwritten. Plain integers, no tensor.

A block is in exactly one of three states:
    free   nobody holds it and its contents are worthless
    idle   nobody holds it, but a prefix index still knows its contents: kept until the space is needed
    held   `refs` block tables point to it
Contract: free + idle + held = all blocks; `refs` is the number of tables that point to a block and never negative; a
call that cannot be served raises and changes nothing; every call costs as much as the blocks it names, however large
the pool is.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from minillm.cache.errors import CacheError, PoolExhausted


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens each, handed out and counted (PagedAttention, Kwon et al. 2023).

    `on_evict(block)` is called before an idle block is handed out anew, so that its index can forget it.
    Raises ValueError for sizes below 1.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Callable[[int], None] = lambda block: None
        self.refs = [0] * num_blocks
        self.cached: set[int] = set()  # blocks whose contents a prefix index knows, held or idle
        self.free = list(range(num_blocks))[::-1]  # a stack: the block freed last is taken first
        self.idle: OrderedDict[int, None] = OrderedDict()  # the least recently held first

    @property
    def available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self.free) + len(self.idle)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens: the last one may be partly empty."""
        return -(-tokens // self.block_size)

    def is_shared(self, block: int) -> bool:
        """Whether writing into this block would be seen by anyone but its one holder."""
        return self.refs[block] > 1 or block in self.cached

    def allocate(self, count: int = 1) -> list[int]:
        """`count` blocks, each held once from now on: free ones first, then the idle one that was held longest ago.

        An idle block handed out is cached no longer, and `on_evict` is told. Raises PoolExhausted, with nothing
        changed, if there are not so many. The books: refs[block] (holders), the list free, the OrderedDict idle (held
        longest ago first) and the set cached.
        """
        if count > self.available:
            raise PoolExhausted(f"{count} blocks asked for: expected at most {self.available} of {self.num_blocks}")
        blocks: list[int] = []
        while len(blocks) < count:
            if not self.free:
                block = next(iter(self.idle))
                self.on_evict(block)
                self.uncache(block)  # nobody holds it: it is free now
            blocks.append(self.free.pop())
            self.refs[blocks[-1]] = 1
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """One more table points to each of these blocks, which are held or idle.

        Raises CacheError, with nothing changed, for a block that is free or does not exist.
        """
        self._check(blocks)
        for block in blocks:
            if self.refs[block] == 0 and block not in self.cached:
                raise CacheError(f"block {block} is free: expected one that is held or cached, to share it")
        for block in blocks:
            if self.refs[block] == 0:
                del self.idle[block]
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One table fewer points to each of these blocks; the last one out leaves it idle if cached, else free.

        The blocks stand in the order of their table and are given up from its end: the deeper a block lies in a text,
        the earlier it is evicted. Raises CacheError, with nothing changed, for a block released more often than held.
        """
        for block, times in self._check(blocks).items():
            if times > self.refs[block]:
                raise CacheError(f"block {block} is released {times} times: expected at most {self.refs[block]}")
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0 and block in self.cached:
                self.idle[block] = None
            elif self.refs[block] == 0:
                self.free.append(block)

    def cache(self, block: int) -> None:
        """A prefix index knows this held block: it will be idle, not free, when nobody holds it any more."""
        if not 0 <= block < self.num_blocks or self.refs[block] == 0:
            raise CacheError(f"block {block} is not held: expected a held one, only those have known contents")
        self.cached.add(block)

    def uncache(self, block: int) -> None:
        """The prefix index forgets this block."""
        if block not in self.cached:
            raise CacheError(f"block {block} is not cached: expected a cached one")
        self.cached.remove(block)
        if self.refs[block] == 0:
            del self.idle[block]
            self.free.append(block)

    def _check(self, blocks: Sequence[int]) -> Counter[int]:
        """How often each block is named. Raises CacheError for one that does not exist."""
        for block in blocks:
            if not isinstance(block, int) or not 0 <= block < self.num_blocks:
                raise CacheError(f"block {block!r} does not exist: expected 0 to {self.num_blocks - 1}")
        return Counter(blocks)
