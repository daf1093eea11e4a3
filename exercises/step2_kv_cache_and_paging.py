"""Step 2, KV cache, paging and prefix caching: the exercises.

Write in your own copy, mine/exercises/step2_kv_cache_and_paging.py. The commands, in the order in which you need them:

    minillm check 2.1       does it work? if not, the smallest case where it goes wrong
    minillm hint 2.1        one hint more each time, three in all
    minillm solution 2.1    yours and ours side by side (once yours passes, or after three hints)
    minillm reset 2.1       start this one again; what you had is kept in mine/backups
    minillm progress        what is done, what is next

exercises/step2_kv_cache_and_paging.py is generated from the package's source by minillm.course.build.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minillm.cache import blocks, prefix
from minillm.cache.blocks import BlockPool
from minillm.cache.errors import CacheError, PoolExhausted
from minillm.cache.prefix import hash_block
from minillm.cache.radix import Node, common_length
from minillm.course.hunts import BLOCK
from minillm.measure import shape

# ----------------------------------------------------------------------------
# 2.1 Bytes that one token leaves behind
# 5 minutes, difficulty 1 of 3, our answer has 3 lines
# Teaches: What decides how much memory a sequence takes: the layers and the K/V heads, not the
#   parameters.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "What a token leaves behind"


class ModelShapeKvBytesPerToken(shape.ModelShape):
    """shape.ModelShape with this one method written by you."""

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float:
        """Bytes of K and V that one token leaves behind, in all layers together.

        `bytes_per_value`: of each number in them, 2 for float16, 0.5 for 4 bits.
        """
        raise NotImplementedError("exercise 2.1")


# ----------------------------------------------------------------------------
# 2.2 A pool of blocks
# 25 minutes, difficulty 2 of 3, our answer has 20 lines
# Teaches: Memory handed out in blocks of one size: counted by holder, given back by the last,
#   refused as a whole.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "Memory in blocks"


class BlockPoolAllocate(blocks.BlockPool):
    """blocks.BlockPool with this one method written by you."""

    def allocate(self, count: int = 1) -> list[int]:
        """`count` blocks, each held once from now on: free ones first, then the idle one that was held longest ago.

        An idle block handed out is cached no longer, and `on_evict` is told. Raises PoolExhausted, with nothing
        changed, if there are not so many. The books: refs[block] (holders), the list free, the OrderedDict idle (held
        longest ago first) and the set cached.
        """
        raise NotImplementedError("exercise 2.2")


class BlockPoolRelease(blocks.BlockPool):
    """blocks.BlockPool with this one method written by you."""

    def release(self, blocks: Sequence[int]) -> None:
        """One table fewer points to each of these blocks; the last one out leaves it idle if cached, else free.

        The blocks stand in the order of their table and are given up from its end: the deeper a block lies in a text,
        the earlier it is evicted. Raises CacheError, with nothing changed, for a block released more often than held.
        """
        raise NotImplementedError("exercise 2.2")


# ----------------------------------------------------------------------------
# 2.3 Copy on write
# 20 minutes, difficulty 3 of 3, our answer has 11 lines
# Teaches: Answers share their prompt's blocks until one of them writes; only the block written into
#   is copied.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "One prompt, several answers"


def make_writable(pool: BlockPool, table: list[int], start: int, end: int) -> list[tuple[int, int]]:
    """Let tokens start … end - 1 of a sequence be written through its table (copy-on-write, Kwon et al. 2023).

    A block that holds any of these positions and is shared (`pool.is_shared`) is replaced in the table by one of our
    own, and no longer held by us; blocks that the table lacks are added. The table is changed in place. Returns the
    copies to make, (from, to). The pool must have room: see `blocks_needed`.
    """
    raise NotImplementedError("exercise 2.3")


# ----------------------------------------------------------------------------
# 2.4 From tokens to slots and back
# 15 minutes, difficulty 2 of 3, our answer has 3 lines
# Teaches: The whole address translation of paging: a division for the page, its remainder for the
#   place in it.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "Memory in blocks"


def slot_mapping(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """The slots of tokens start … end - 1 of a sequence: block * block_size + offset, one a token."""
    raise NotImplementedError("exercise 2.4")


def gather_blocks(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """The first `length` tokens of a sequence, in order, out of its blocks.

    blocks [num_blocks, block_size, H_kv, D], table [pages] int64 -> [length, H_kv, D], a copy.
    """
    raise NotImplementedError("exercise 2.4")


# ----------------------------------------------------------------------------
# 2.5 The longest known beginning
# 20 minutes, difficulty 3 of 3, our answer has 11 lines
# Teaches: Why a block is found by everything before it and not by its own tokens, and why one token
#   is always left.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "The same beginning twice"


class HashIndexMatch(prefix.HashIndex):
    """prefix.HashIndex with this one method written by you."""

    def match(self, token_ids: Sequence[int], extra: str = "") -> tuple[int, list[int]]:
        """(n, blocks): the longest known chain of full blocks at the start of token_ids, always short of all of them.

        The last token is never taken from the cache: its logits choose the next one, so it has to be computed. The
        hash of a block is hash_block(parent, page, extra): parent is the hash of the block before, b"" for the first;
        page is its tokens, a tuple. self._find(that hash, parent, page, extra) gives what is known under it, with its
        `block` and its `hash`; None if that is nothing, or another text that happens to have the same hash.
        """
        raise NotImplementedError("exercise 2.5")


# Further: what follows does not count against your progress.


# ----------------------------------------------------------------------------
# 2.6 A tree of texts
# 25 minutes, difficulty 3 of 3, our answer has 16 lines
# Teaches: The other way to find a beginning: texts share a path of a tree, cut where a new text
#   leaves it.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "The same beginning twice"


def walk(root: Node, token_ids: Sequence[int]) -> tuple[int, list[Node]]:
    """(n, path): the first n tokens are in the tree, along these nodes below the root; n may end inside the last.

    node.children[token] is the child whose run begins with that token: there is one at most.
    """
    raise NotImplementedError("exercise 2.6")


def split(node: Node, length: int, block_size: int) -> Node:
    """Cut a node after `length` of its tokens: a new node above it takes them, and the blocks of pages ending there.

    0 < length < len(node.token_ids). Returns the new node, whose one child is the old one. Page p of a text is its
    tokens p * block_size to (p + 1) * block_size - 1; the pages that end in a node are counted from its `start`, so
    the first of them may begin before it.
    """
    raise NotImplementedError("exercise 2.6")


# ----------------------------------------------------------------------------
# 2.7 KV in eight and in four bits
# 20 minutes, difficulty 2 of 3, our answer has 5 lines
# Teaches: Whole numbers and one scale stand for a group of values, and two numbers of four bits
#   share a byte.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "Fewer bytes for each token"


def _positive(scale: torch.Tensor) -> torch.Tensor:
    """The scale, or the smallest positive number where it is 0: it will be divided by."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)


def symmetric(x: torch.Tensor, bits: int, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes -(2^(bits-1) - 1) … 2^(bits-1) - 1 around an exact 0: x ≈ codes * scale.

    x of any shape -> codes int8 [same], scale [same, 1 along dims] in x's dtype, above 0 for zeros too. bits: 2 to 8.
    """
    raise NotImplementedError("exercise 2.7")


def pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Two codes of 0 … 15 in a byte: uint8 [..., 2n] -> uint8 [..., n]. The even one takes the low four bits."""
    raise NotImplementedError("exercise 2.7")


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The codes that `pack_int4` packed: uint8 [..., n] -> uint8 [..., 2n]."""
    raise NotImplementedError("exercise 2.7")


# ----------------------------------------------------------------------------
# 2.8 Bug hunt: the block of another text
# 15 minutes, difficulty 2 of 3, our answer has 1 line
# Teaches: Which prompts get another text's K and V when a block's hash leaves out what stands
#   before it.
# Lesson: notebooks/02_kv_cache_and_paging.ipynb, section "The same beginning twice"


def reused_with_a_bug(earlier: list[int], later: list[int]) -> list[int]:
    """Which blocks of the prompt `earlier` (0: its first two tokens, …) the prompt `later` starts from.

    They stand for the first tokens of `later`, two each; the last token is always computed. There is one mistake in it.
    """
    known: dict[bytes, int] = {}
    for block in range(len(earlier) // BLOCK):
        page = tuple(earlier[block * BLOCK : (block + 1) * BLOCK])
        known.setdefault(hash_block(b"", page, ""), block)
    blocks: list[int] = []
    for start in range(0, (len(later) - 1) // BLOCK * BLOCK, BLOCK):
        digest = hash_block(b"", tuple(later[start : start + BLOCK]), "")
        if digest not in known:
            break
        blocks.append(known[digest])
    return blocks


def smallest_prompts() -> tuple[list[int], list[int]]:
    """Two prompts, (earlier, later), of token ids: reused_with_a_bug gives `later` a block of another text.

    That is a block whose K and V were computed after other tokens than those that stand before it in `later`.
    Smallest: the fewest tokens in both prompts together.
    """
    raise NotImplementedError("exercise 2.8")
