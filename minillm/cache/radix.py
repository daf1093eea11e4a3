"""Prefix caching by a tree of texts: any common beginning is found, to the token (RadixAttention, Zheng et al. 2024).

An edge of the tree holds a run of tokens; texts that begin alike share the path of what they have in common. Here a
node stands for the edge that leads to it, and owns the blocks of the pages (block-sized stretches of a text) that end
inside it; a leaf owns its last, partial page too. So every block has one owner. Where a path ends inside a page, any
child's block serves: it begins with the same tokens.

Tables hold whole paths, and give up a path's end before its beginning, so the block that was held longest ago is at
the end of a leaf: the pool's own order evicts leaf first. There is one exception. A table that was forked before
`register` exchanged a block for the tree's own may hold a later block of a path and not that one; when that one is
evicted, what follows it leaves the tree too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.cache.blocks import BlockPool


@dataclass(eq=False)
class Node:
    """A run of tokens that starts at position `start`, the blocks of the pages that end in it, and what follows."""

    token_ids: list[int]
    start: int
    parent: Node | None
    blocks: list[int] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)  # by their first token

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens at the start of a and b agree."""
    for place, (one, other) in enumerate(zip(a, b)):
        if one != other:
            return place
    return min(len(a), len(b))


def walk(root: Node, token_ids: Sequence[int]) -> tuple[int, list[Node]]:
    """(n, path): the first n tokens are in the tree, along these nodes below the root; n may end inside the last.

    node.children[token] is the child whose run begins with that token: there is one at most.
    """
    n, path, node = 0, [], root
    while n == node.end and n < len(token_ids):
        node = node.children.get(token_ids[n])
        if node is None:
            break
        n += common_length(node.token_ids, token_ids[n : node.end])
        path.append(node)
    return n, path


def split(node: Node, length: int, block_size: int) -> Node:
    """Cut a node after `length` of its tokens: a new node above it takes them, and the blocks of pages ending there.

    0 < length < len(node.token_ids). Returns the new node, whose one child is the old one. Page p of a text is its
    tokens p * block_size to (p + 1) * block_size - 1; the pages that end in a node are counted from its `start`, so
    the first of them may begin before it.
    """
    upper = Node(node.token_ids[:length], node.start, node.parent)
    first_page = node.start // block_size
    taken = upper.end // block_size - first_page  # pages that end inside the upper part
    upper.blocks, node.blocks = node.blocks[:taken], node.blocks[taken:]
    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper
    upper.children[node.token_ids[0]] = node
    upper.parent.children[upper.token_ids[0]] = upper
    return upper


def blocks_below(node: Node) -> list[int]:
    """The blocks of all nodes under this one."""
    blocks, nodes = [], list(node.children.values())
    while nodes:
        below = nodes.pop()
        blocks += below.blocks
        nodes += below.children.values()
    return blocks


class RadixIndex:
    """Texts in a radix tree, one tree for each extra key; token granularity, over blocks of any size."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        pool.on_evict = self.evict
        self.roots: dict[str, Node] = {}
        self.owners: dict[int, Node] = {}  # block -> the node that owns it

    def match(self, token_ids: Sequence[int], extra: str = "") -> tuple[int, list[int]]:
        """(n, blocks): the longest common beginning of token_ids and any text in the tree, short of all of them."""
        if extra not in self.roots:
            return 0, []
        n, path = walk(self.roots[extra], token_ids[: len(token_ids) - 1])
        pages = self.pool.blocks_for(n)
        blocks = [block for node in path for block in node.blocks]
        node = path[-1] if path else None
        while len(blocks) < pages:  # the path ends inside a page: whoever continues it has that page's tokens
            node = next(iter(node.children.values()))
            blocks += node.blocks
        return n, blocks[:pages]

    def insert(self, token_ids: Sequence[int], table: Sequence[int], extra: str = "",
               closing: bool = False) -> list[int]:
        size = self.pool.block_size
        if not closing:
            token_ids = token_ids[: len(token_ids) // size * size]
        if not token_ids:
            return []
        root = self.roots.setdefault(extra, Node([], 0, None))
        n, path = walk(root, token_ids)
        node = path[-1] if path else root
        known = [block for above in path for block in above.blocks][: n // size]
        if n < len(token_ids):
            if n < node.end:
                self._split(node, n)
                node = node.parent
            self._append(node, list(token_ids[n:]), list(table[n // size : self.pool.blocks_for(len(token_ids))]))
        full = len(token_ids) // size
        return known + list(table[len(known) : full])

    def evict(self, block: int) -> None:
        """Forget a block: its page's tokens go, all that follows them in the tree, and nodes that become empty."""
        node = self.owners.pop(block)
        last = len(node.blocks) - 1
        while node.blocks[last] != block:
            last -= 1
        for orphan in [*node.blocks[last + 1 :], *blocks_below(node)]:
            self._disown(orphan)
        del node.blocks[last:]
        node.children.clear()
        self._trim(node)

    def metadata_bytes(self) -> int:
        nodes, total = list(self.roots.values()), sys.getsizeof(self.owners) + sys.getsizeof(self.roots)
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            total += sum(map(sys.getsizeof, (node, node.__dict__, node.token_ids, node.blocks, node.children)))
        return total

    def _split(self, node: Node, at: int) -> None:
        upper = split(node, at - node.start, self.pool.block_size)
        self.owners.update(dict.fromkeys(upper.blocks, upper))

    def _append(self, parent: Node, token_ids: list[int], blocks: list[int]) -> None:
        """A new leaf below `parent`, which owns the page that the parent ends in."""
        first_page = parent.start // self.pool.block_size
        if not parent.children and first_page + len(parent.blocks) > parent.end // self.pool.block_size:
            self._disown(parent.blocks.pop())  # the parent's own partial page: the new leaf's block holds it too
        leaf = Node(token_ids, parent.end, parent, blocks)
        parent.children[token_ids[0]] = leaf
        for block in blocks:
            self.owners[block] = leaf
            self.pool.cache(block)

    def _disown(self, block: int) -> None:
        del self.owners[block]
        self.pool.uncache(block)

    def _trim(self, node: Node) -> None:
        """Cut a leaf where its blocks end; without any token left it goes, and its parent may be a leaf in turn."""
        size = self.pool.block_size
        while node.parent is not None and not node.children:
            covered = (node.start // size + len(node.blocks)) * size
            if covered >= node.end:
                return
            if covered > node.start:
                del node.token_ids[covered - node.start :]
                return
            del node.parent.children[node.token_ids[0]]
            node = node.parent
        if node.parent is None and not node.children:
            self.roots = {extra: root for extra, root in self.roots.items() if root is not node}
