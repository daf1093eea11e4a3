"""Step 2, the KV cache in blocks, and beginnings that are found again."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Step, Target

STEP = Step(2, "kv_cache_and_paging", "KV cache, paging and prefix caching")

KV_BYTES = Exercise(
    id="2.1",
    targets=(Target.parse("minillm.measure.shape:ModelShape.kv_bytes_per_token"),),
    title="Bytes that one token leaves behind",
    minutes=5,
    difficulty=1,
    teaches="What decides how much memory a sequence takes: the layers and the K/V heads, not the parameters.",
    hints=(
        "How many vectors does one layer keep of a token, and how long is each? Do heads that only ask (the query "
        "heads) leave anything behind?",
        "Values of K in one layer: a head's length for each K/V head (self.kv_size has it).\n"
        "V is as large again.\n"
        "Every layer keeps its own.\n"
        "Each value takes bytes_per_value bytes: 2 for float16, 0.5 for 4 bits.",
        "per_layer = ____ * self.kv_size\n"
        "values = self.layers * per_layer\n"
        "return values * bytes_per_value",
    ),
    notice="Neither the vocabulary nor the MLP is in it. Llama-2-7B, with a K/V head for each query head, leaves "
           "512 KiB a token; Llama-3-8B, which is larger, leaves 128.",
    section="What a token leaves behind",
    used_by=("plan",),
)

POOL = Exercise(
    id="2.2",
    targets=(Target.parse("minillm.cache.blocks:BlockPool.allocate"),
             Target.parse("minillm.cache.blocks:BlockPool.release")),
    title="A pool of blocks",
    minutes=25,
    difficulty=2,
    teaches="Memory handed out in blocks of one size: counted by holder, given back by the last, refused as a whole.",
    hints=(
        "Two tables point to block 3, and one of them is given up. Is the block free? And if a prefix index still "
        "knows what is in it when the second goes too: is its content worthless then?",
        "allocate: more than self.available are asked for: raise PoolExhausted before anything is touched.\n"
        "As long as blocks are missing: is self.free empty? Then take the block that is first in self.idle, tell "
        "self.on_evict, and self.uncache it, which makes it free.\n"
        "Take one from self.free; from now on it has one holder: self.refs.\n"
        "release: count how often each block is named. More often than it is held: raise CacheError, before anything "
        "is touched.\n"
        "Then from the last block to the first: one holder fewer.\n"
        "Nobody left: in self.idle if it is in self.cached, otherwise on self.free.",
        "def allocate(self, count=1):\n"
        "    if count > self.available:\n"
        '        raise PoolExhausted(f"{count} blocks asked for: expected at most {self.available}")\n'
        "    blocks = []\n"
        "    while len(blocks) < count:\n"
        "        if not self.free:\n"
        "            block = next(iter(self.idle))\n"
        "            self.on_evict(block)\n"
        "            self.uncache(block)\n"
        "        blocks.append(self.free.pop())\n"
        "        self.refs[blocks[-1]] = 1\n"
        "    return blocks\n"
        "\n"
        "def release(self, blocks):\n"
        "    for block, times in self._check(blocks).items():\n"
        "        if times > ____:\n"
        '            raise CacheError(f"block {block} is released {times} times")\n'
        "    for block in reversed(blocks):\n"
        "        self.refs[block] -= 1\n"
        "        if self.refs[block] == 0 and block in self.cached:\n"
        "            self.idle[block] = None\n"
        "        elif self.refs[block] == 0:\n"
        "            self.free.append(block)",
    ),
    notice="Both look before they touch anything, so a refusal leaves no half-done work to undo. And nothing here "
           "knows a tensor: a scheduler can plan with the same numbers without owning the memory.",
    section="Memory in blocks",
    used_by=("generate", "chat"),
)

COPY_ON_WRITE = Exercise(
    id="2.3",
    targets=(Target.parse("minillm.cache.tables:make_writable"),),
    title="Copy on write",
    minutes=20,
    difficulty=3,
    teaches="Answers share their prompt's blocks until one of them writes; only the block written into is copied.",
    hints=(
        "Blocks hold 4 tokens, two answers share a prompt of 6. One of them writes token number 6, the seventh. Which "
        "of the two blocks does it write into, and does the other answer still need what is in there?",
        "The first page written into is start // pool.block_size. From there to the end of the table:\n"
        "Is the block shared (pool.is_shared)? Then allocate one of our own,\n"
        "note the copy (from the old, to the new),\n"
        "release the old one: we hold it no longer, others may,\n"
        "and put our own into the table at that place.\n"
        "After the loop: the table needs pool.blocks_for(end) blocks; allocate those that it lacks and append them.",
        "copies = []\n"
        "for page in range(____, len(table)):\n"
        "    if pool.is_shared(table[page]):\n"
        "        (own,) = pool.allocate()\n"
        "        copies.append((table[page], own))\n"
        "        pool.release([table[page]])\n"
        "        table[page] = own\n"
        "table += pool.allocate(max(0, pool.blocks_for(end) - len(table)))\n"
        "return copies",
    ),
    notice="A block that a prefix index knows counts as shared although one table holds it: it was promised to hold "
           "just these tokens. Full blocks before start are never written again, and so never copied.",
    section="One prompt, several answers",
    used_by=("generate", "chat"),
)

SLOTS = Exercise(
    id="2.4",
    targets=(Target.parse("minillm.cache.paged:slot_mapping"), Target.parse("minillm.cache.paged:gather_blocks")),
    title="From tokens to slots and back",
    minutes=15,
    difficulty=2,
    teaches="The whole address translation of paging: a division for the page, its remainder for the place in it.",
    hints=(
        "Blocks hold 4 tokens and a table is [7, 2]. In which block, and at which place in it, is token number 5? And "
        "which slot is that, if block 0 has the slots 0 to 3?",
        "slot_mapping: for each token number i from start to end - 1:\n"
        "its page is i // block_size, and table[page] the block;\n"
        "its place in the block is i % block_size;\n"
        "its slot: block_size slots for each block before, and then that place.\n"
        "gather_blocks: index blocks by the table: [pages, block_size, H_kv, D], in the order of the text.\n"
        "Lay the pages end to end: the first two dimensions become one.\n"
        "Keep the first `length` tokens; the rest of the last page is not written yet.",
        "def slot_mapping(table, start, end, block_size):\n"
        "    return [____ * block_size + i % block_size for i in range(start, end)]\n"
        "\n"
        "def gather_blocks(blocks, table, length):\n"
        "    pages = blocks[table]\n"
        "    return pages.flatten(0, 1)[:length]",
    ),
    notice="The blocks may lie anywhere, in any order: attention cannot tell. The copy that gather_blocks makes is the "
           "price of the obvious way; step 4's kernel reads the blocks where they lie.",
    section="Memory in blocks",
    used_by=("generate", "chat"),
    backend="reference",
)

PREFIX = Exercise(
    id="2.5",
    targets=(Target.parse("minillm.cache.prefix:HashIndex.match"),),
    title="The longest known beginning",
    minutes=20,
    difficulty=3,
    teaches="Why a block is found by everything before it and not by its own tokens, and why one token is always left.",
    hints=(
        "Two texts have the same tokens at places 4 to 7, and different ones before. May the second use the first's K "
        "and V for these four? What would the hash of a block have to contain, so that it does not find them?",
        "How many full blocks may be taken, if the last token must be left to compute? For 8 tokens in blocks of 4 it "
        "is one, not two.\n"
        "For each of them, in order: its tokens as a tuple.\n"
        "Its hash: hash_block(hash of the block before, its tokens, extra).\n"
        "What the index knows under it: self._find. None: the chain ends here, whatever comes later.\n"
        "Otherwise keep its block, and its hash is the next one's parent.\n"
        "Return the tokens covered and the blocks.",
        "blocks = []\n"
        'parent = b""\n'
        "size = self.pool.block_size\n"
        "for start in range(0, ____ // size * size, size):\n"
        "    page = tuple(token_ids[start : start + size])\n"
        "    known = self._find(hash_block(parent, page, extra), parent, page, extra)\n"
        "    if known is None:\n"
        "        break\n"
        "    blocks.append(known.block)\n"
        "    parent = known.hash\n"
        "return len(blocks) * size, blocks",
    ),
    notice="match takes no hold of the blocks: whoever asked does (pool.share), so that asking changes nothing. _find "
           "compares the tokens as well: a hash is a hint where to look, never the proof.",
    section="The same beginning twice",
    used_by=("generate", "chat"),
)

RADIX = Exercise(
    id="2.6",
    targets=(Target.parse("minillm.cache.radix:walk"), Target.parse("minillm.cache.radix:split")),
    title="A tree of texts",
    minutes=25,
    difficulty=3,
    teaches="The other way to find a beginning: texts share a path of a tree, cut where a new text leaves it.",
    hints=(
        "A node holds the tokens 5, 6, 7, 8, and a text goes 5, 6, 9. How many tokens of it are in the tree? Where has "
        "the node to be cut, so that the text can branch off?",
        "walk: begin at the root with n = 0. As long as the current node is covered whole (n == node.end) and tokens "
        "are left:\n"
        "the child that begins with token n; if there is none, it ends here;\n"
        "n grows by what the child's run and the text have in common (common_length), and the child joins the path.\n"
        "split: the new upper node has the first `length` tokens, the same start and parent.\n"
        "It takes as many blocks as pages end in it: upper.end // block_size - start // block_size.\n"
        "The old node keeps the other tokens and blocks; it starts where the upper one ends, below it.\n"
        "The upper node's one child is the old node, and it takes the old node's place among its parent's children.",
        "def walk(root, token_ids):\n"
        "    n, path, node = 0, [], root\n"
        "    while n == node.end and n < len(token_ids):\n"
        "        node = node.children.get(token_ids[n])\n"
        "        if node is None:\n"
        "            break\n"
        "        n += common_length(node.token_ids, token_ids[n:])\n"
        "        path.append(node)\n"
        "    return n, path\n"
        "\n"
        "def split(node, length, block_size):\n"
        "    upper = Node(node.token_ids[:length], node.start, node.parent)\n"
        "    taken = ____ - node.start // block_size\n"
        "    upper.blocks, node.blocks = node.blocks[:taken], node.blocks[taken:]\n"
        "    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper\n"
        "    upper.children[node.token_ids[0]] = node\n"
        "    upper.parent.children[upper.token_ids[0]] = upper\n"
        "    return upper",
    ),
    notice="The tree finds a beginning to the token, where hashes find whole blocks. What ends inside a page costs it "
           "a copy of that page: the text that branches off writes into it.",
    section="The same beginning twice",
    used_by=("02_kv_cache_and_paging",),
    core=False,
)

BITS = Exercise(
    id="2.7",
    targets=(Target.parse("minillm.numerics.grid:symmetric"), Target.parse("minillm.numerics.grid:pack_int4"),
             Target.parse("minillm.numerics.grid:unpack_int4")),
    given=(Target.parse("minillm.numerics.grid:_positive"),),
    title="KV in eight and in four bits",
    minutes=20,
    difficulty=2,
    teaches="Whole numbers and one scale stand for a group of values, and two numbers of four bits share a byte.",
    hints=(
        "A group holds -254, 5.2 and 90.6, and its codes may be -127 to 127. How long is one step, so that all of them "
        "fit? And how long would it be if -254 had its own group?",
        "symmetric: the codes go from -levels to levels: how many are that for 8 bits, and for 4?\n"
        "The largest value in size of each group, along dims and with keepdim=True, is `levels` steps away from 0.\n"
        "scale: the length of a step, never 0 (_positive).\n"
        "codes: how many steps each value is away from 0, rounded, and as int8.\n"
        "pack_int4: codes 0, 2, 4, … of the last dimension stay in the low four bits.\n"
        "Codes 1, 3, 5, … move up by four, and | brings the two together.\n"
        "unpack_int4: the low four bits alone (& 15), and the high four moved down.\n"
        "Pair them in a new last dimension (torch.stack), and make one of the last two (flatten).",
        "def symmetric(x, bits, dims):\n"
        "    levels = 2 ** (bits - 1) - 1\n"
        "    scale = _positive(____ / levels)\n"
        "    return (x / scale).round().clamp(-levels, levels).to(torch.int8), scale\n"
        "\n"
        "def pack_int4(codes):\n"
        "    return codes[..., 0::2] | (codes[..., 1::2] << 4)\n"
        "\n"
        "def unpack_int4(packed):\n"
        "    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)",
    ),
    notice="What a group is decides the error: one large value coarsens all that share its scale. Smaller groups have "
           "more scales, and those take bytes too: at four bits they are no longer small change.",
    section="Fewer bytes for each token",
    used_by=("02_kv_cache_and_paging",),
    core=False,
)

HUNT = Exercise(
    id="2.8",
    targets=(Target.parse("minillm.course.hunts:smallest_prompts"),),
    given=(Target.parse("minillm.course.hunts:reused_with_a_bug"),),
    title="Bug hunt: the block of another text",
    minutes=15,
    difficulty=2,
    teaches="Which prompts get another text's K and V when a block's hash leaves out what stands before it.",
    hints=(
        "Read reused_with_a_bug beside your answer to 2.5. What goes into the hash of a block here, and what is "
        "missing? Two blocks with the same tokens: when must they not be taken for the same?",
        "The later prompt has to find a block that is not where its own text has it.\n"
        "Either it is its first block, and stands further back in the earlier prompt:\n"
        "then the earlier prompt is something else, and then that block.\n"
        "Or the later prompt comes back to its first block, and the earlier one has it only once.\n"
        "Then leave out what does not matter; the last token of the later prompt does.",
        "return [8, 9, 1, 2], ____",
    ),
    notice="Nothing crashes, and the text reads well: the model only remembers words that nobody said. Prompts that "
           "begin alike, the case everybody tests, come out right.",
    section="The same beginning twice",
    used_by=(),
    core=False,
)

EXERCISES = (KV_BYTES, POOL, COPY_ON_WRITE, SLOTS, PREFIX, RADIX, BITS, HUNT)
