"""Block tables: which blocks hold the tokens of which sequence. Plain integers, no tensor.

Token `i` of a sequence lies in block `table[i // block_size]`, at offset `i % block_size`. Tables share blocks: after a
fork, and when a prefix index knows a prompt's beginning. Whoever writes into a shared block gets a copy first
(copy-on-write); the copies come back as (from, to) pairs, for the owner of the memory to carry out before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError, PoolExhausted
from minillm.cache.prefix import PrefixIndex


def make_writable(pool: BlockPool, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
    """Let tokens start … end - 1 of a sequence be written through its table (copy-on-write, Kwon et al. 2023).

    A block that holds any of these positions and is shared (`pool.is_shared`) is replaced in the table by one of our
    own, and no longer held by us; blocks that the table lacks are added. The table is changed in place. Returns the
    copies to make, (from, to). The pool must have room: see `blocks_needed`.
    """
    copies = []
    for page in range(start // pool.block_size, len(table)):
        if pool.is_shared(table[page]):
            (own,) = pool.allocate()
            copies.append((table[page], own))
            pool.release([table[page]])
            table[page] = own
    missing = pool.blocks_for(end) - len(table)
    if missing > 0:
        table += pool.allocate(missing)
    return copies


@dataclass
class PrefixStats:
    """Prompt tokens seen and found, each prompt counted once; what a preempted request asks for again stands apart."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    again_tokens: int = 0
    again_hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class BlockTables:
    """The tables of all sequences over one pool, and the prefix index that lets them share.

    `lengths[seq]` tokens of a sequence are written; its table may reach further (reserved).
    """

    def __init__(self, pool: BlockPool, index: PrefixIndex | None = None) -> None:
        self.pool = pool
        self.index = index
        self.stats = PrefixStats()
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self._extras: dict[int, str] = {}

    def start(self, seq: int, prompt_ids: Sequence[int], extra: str = "", again: bool = False) -> int:
        """Open a sequence on whatever the index knows of its prompt; returns the tokens that need no computing.

        At most all but the last prompt token: that one must be computed, its logits choose what follows. `extra` keeps
        apart texts that must not share (an adapter, a tenant); `again`: a preempted request comes back.
        """
        if seq in self.tables:
            raise CacheError(f"sequence {seq} has a block table: expected a new one")
        hit, blocks = (0, []) if self.index is None else self.index.match(prompt_ids, extra)
        self.pool.share(blocks)
        self.tables[seq], self.lengths[seq], self._extras[seq] = list(blocks), hit, extra
        if again:
            self.stats.again_tokens += len(prompt_ids)
            self.stats.again_hit_tokens += hit
        else:
            self.stats.prompt_tokens += len(prompt_ids)
            self.stats.hit_tokens += hit
        return hit

    def blocks_to_start(self, token_ids: Sequence[int], extra: str = "") -> int:
        """Blocks that `available` falls by when a sequence is opened by `start` and all of token_ids is written.

        A known block that others hold costs nothing; an idle one is taken from what is available; one that is known
        only in part is copied before it is written on.
        """
        total = self.pool.blocks_for(len(token_ids))
        if self.index is None:
            return total
        hit, blocks = self.index.match(token_ids, extra)
        idle = sum(self.pool.refs[block] == 0 for block in blocks)
        return total - len(blocks) + idle + (hit % self.pool.block_size > 0)

    def restore(self, seq: int, length: int, extra: str = "") -> list[int]:
        """Open a sequence whose first `length` tokens will be put back into these blocks, which are its own.

        Raises PoolExhausted, with nothing changed, if there are not so many.
        """
        if seq in self.tables:
            raise CacheError(f"sequence {seq} has a block table: expected a new one")
        table = self.pool.allocate(self.pool.blocks_for(length))
        self.tables[seq], self.lengths[seq], self._extras[seq] = table, length, extra
        return table

    def blocks_needed(self, totals: Mapping[int, int]) -> int:
        """Blocks to allocate so that each sequence can be written up to totals[seq] tokens, copies included.

        Of k sequences that write into a block held by k tables only k - 1 copy: the last one has it to itself.
        """
        needed = 0
        size, refs, cached = self.pool.block_size, self.pool.refs, self.pool.cached  # asked of every row of every step
        holders: dict[int, int] = {}  # block -> tables still pointing to it, as the copies are made
        for seq, total in totals.items():
            table = self.tables.get(seq, ())
            missing = -(-total // size) - len(table)
            if missing > 0:
                needed += missing
            for page in range(self.lengths.get(seq, 0) // size, len(table)):
                block = table[page]
                held = holders.get(block, refs[block])
                if held > 1 or block in cached:
                    needed += 1
                    holders[block] = held - 1
        return needed

    def reserve(self, totals: Mapping[int, int]) -> list[tuple[int, int]]:
        """Make room for each sequence to be written up to totals[seq] tokens; returns the copies to make first.

        Sequences not opened by `start` are opened empty. Raises PoolExhausted, with nothing changed, if the pool has
        too few blocks for all of them.
        """
        needed = self.blocks_needed(totals)
        if needed > self.pool.available:
            raise PoolExhausted(f"sequences {sorted(totals)} need {needed} more blocks: expected at most "
                                f"{self.pool.available}, all that is free or idle of {self.pool.num_blocks}")
        copies = []
        for seq, total in totals.items():
            table = self.tables.setdefault(seq, [])
            copies += make_writable(self.pool, table, self.lengths.setdefault(seq, 0), total)
        return copies

    def register(self, seq: int, token_ids: Sequence[int], closing: bool = False) -> None:
        """Tell the index what the written blocks of a sequence hold: token_ids, its whole text so far.

        Only what is written counts. Full blocks, and with `closing` (nothing more will be written) the partial one
        too, where the index can use it. Where the index already knows a block of the same text, the table takes that
        one and gives its own back.
        """
        if self.index is None:
            return
        table, known = self.tables[seq], token_ids[: self.lengths[seq]]
        for page, block in enumerate(self.index.insert(known, table, self._extras.get(seq, ""), closing)):
            if block != table[page]:
                self.pool.share([block])
                self.pool.release([table[page]])
                table[page] = block

    def fork(self, parent: int, child: int) -> None:
        """A new sequence that continues the same text: every block shared, nothing copied.

        Raises CacheError if the parent is not there (it may have finished) or the child is.
        """
        self._known(parent)
        if child in self.tables:
            raise CacheError(f"sequence {child} has a block table: expected a new one to fork {parent} into")
        table = self.tables[parent][: self.pool.blocks_for(self.lengths[parent])]
        self.pool.share(table)
        self.tables[child], self.lengths[child] = table, self.lengths[parent]
        self._extras[child] = self._extras.get(parent, "")

    def truncate(self, seq: int, n: int) -> None:
        """Keep the first n tokens; blocks behind them are released."""
        self._known(seq)
        if not 0 <= n <= self.lengths[seq]:
            raise CacheError(f"sequence {seq} cut to {n} tokens: expected 0 to {self.lengths[seq]}")
        table, kept = self.tables[seq], self.pool.blocks_for(n)
        self.pool.release(table[kept:])
        del table[kept:]
        self.lengths[seq] = n

    def free(self, seq: int) -> None:
        """Forget a sequence; blocks that nobody else holds become idle or free."""
        self._known(seq)
        self.pool.release(self.tables.pop(seq))
        del self.lengths[seq]
        self._extras.pop(seq, None)

    def _known(self, seq: int) -> None:
        if seq not in self.tables:
            raise CacheError(f"sequence {seq} is not in the cache: expected one of {sorted(self.tables)}")
