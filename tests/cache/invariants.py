"""What must hold of a pool, its tables and its index after every operation; a memory that knows what it holds."""

from __future__ import annotations

from collections import Counter

from minillm.cache.blocks import BlockPool
from minillm.cache.tables import BlockTables


def check_pool(pool: BlockPool, held: Counter) -> None:
    """`held`: how many tables point to each block, counted by whoever made the calls."""
    free, idle = set(pool.free), set(pool.idle)
    assert len(free) == len(pool.free), "a block is free twice"
    assert pool.refs == [held[block] for block in range(pool.num_blocks)]
    in_use = {block for block, refs in enumerate(pool.refs) if refs > 0}
    assert not free & idle and not free & in_use and not idle & in_use
    assert len(free) + len(idle) + len(in_use) == pool.num_blocks
    assert not free & pool.cached and idle <= pool.cached
    assert pool.available == len(free) + len(idle)


def known_blocks(index) -> set[int]:
    return set(index.by_block if hasattr(index, "by_block") else index.owners)


class Memory:
    """Tables with a stand-in for K and V: each slot remembers the whole text up to its token, and the extra key.

    That is what K and V of a token depend on, so a slot that holds another text would give a wrong answer.
    """

    def __init__(self, tables: BlockTables) -> None:
        self.tables = tables
        self.slots: dict[int, list] = {b: [None] * tables.pool.block_size for b in range(tables.pool.num_blocks)}
        self.texts: dict[int, list[int]] = {}
        self.extras: dict[int, str] = {}

    def open(self, seq: int, text: list[int], extra: str = "") -> int:
        hit = self.tables.start(seq, text, extra)
        self.texts[seq], self.extras[seq] = text[:hit], extra
        return hit

    def write(self, texts: dict[int, list[int]]) -> None:
        """Append tokens to several sequences in one step."""
        copies = self.tables.reserve({seq: len(self.texts[seq]) + len(new) for seq, new in texts.items()})
        for source, target in copies:
            self.slots[target] = list(self.slots[source])
        size = self.tables.pool.block_size
        for seq, new in texts.items():
            for token in new:
                text = self.texts[seq]
                text.append(token)
                block = self.tables.tables[seq][(len(text) - 1) // size]
                assert not self.tables.pool.is_shared(block), "a shared block is written"
                self.slots[block][(len(text) - 1) % size] = (self.extras[seq], tuple(text))
            self.tables.lengths[seq] = len(self.texts[seq])

    def fork(self, parent: int, child: int) -> None:
        self.tables.fork(parent, child)
        self.texts[child], self.extras[child] = list(self.texts[parent]), self.extras[parent]

    def truncate(self, seq: int, n: int) -> None:
        self.tables.truncate(seq, n)
        del self.texts[seq][n:]

    def close(self, seq: int, register: bool = True) -> None:
        if register:
            self.tables.register(seq, self.texts[seq], closing=True)
        self.tables.free(seq)
        del self.texts[seq], self.extras[seq]

    def check(self) -> None:
        tables, size = self.tables, self.tables.pool.block_size
        assert tables.tables.keys() == self.texts.keys() == tables.lengths.keys()
        check_pool(tables.pool, Counter(block for table in tables.tables.values() for block in table))
        assert tables.pool.cached == (known_blocks(tables.index) if tables.index is not None else set())
        for seq, text in self.texts.items():
            assert tables.lengths[seq] == len(text)
            for i in range(len(text)):
                held = self.slots[tables.tables[seq][i // size]][i % size]
                assert held == (self.extras[seq], tuple(text[: i + 1])), f"sequence {seq}, token {i}: {held}"
