"""Step 4 inside of the kernels: the inner step of FlashAttention, and where a paged cache has a key."""

from __future__ import annotations

from minillm.course.exercise import Exercise, Target

FLASH, DECODE = "minillm.kernels.flash_attention", "minillm.kernels.paged_decode"
LESSON = ("04_attention",)

TILE = Exercise(
    id="4.11",
    targets=(Target.parse(f"{FLASH}:attend_tile"),),
    given=(Target.parse("minillm.kernels.product:multiply"), Target.parse(f"{FLASH}:hide")),
    title="The inner step of the Triton kernel",
    minutes=25,
    difficulty=3,
    teaches="The online softmax where it belongs: on the chip, a tile of queries against tile after tile of keys.",
    hints=(
        "2^x = e^(x · ln 2), so e^(score · scale) is a power of 2 if scale holds log2(e) already. Which of best, the "
        "weights and the factor for what was summed before are in base 2 then? And what is 2^(-inf - -inf)?",
        "scores [BLOCK_M, BLOCK_N]: q times k transposed (k.T), added to a tile of zeros by multiply.\n"
        "If MASKED, hide those that are not seen: before the largest is looked for.\n"
        "The new best: the larger of the old one and the largest score of the tile, query by query, times scale.\n"
        "What to subtract (base): the new best, but 0 where that is -inf still: no key was seen yet.\n"
        "weights: 2^(score times scale, less base). The factor shrink: 2^(old best less base).\n"
        "total: the old one shrunk, and the sum of each query's weights.\n"
        "out: the old one shrunk, and the weights times v, by multiply; it takes two tiles of one dtype.",
        "scores = multiply(q, k.T, tl.zeros([q.shape[0], k.shape[0]], tl.float32))\n"
        "if MASKED:\n"
        "    scores = hide(scores, keys, begins, ends)\n"
        "new_best = tl.maximum(best, tl.max(scores, axis=1) * scale)\n"
        'base = tl.where(new_best == float("-inf"), 0.0, new_best)\n'
        "weights = tl.exp2(scores * scale - base[:, None])\n"
        "shrink = tl.exp2(____)\n"
        "total = total * shrink + tl.sum(weights, axis=1)\n"
        "out = multiply(weights.to(v.dtype), v, out * shrink[:, None])\n"
        "return new_best, total, out",
    ),
    notice="Of the scores nothing leaves the chip. scale is one multiplication a score, and with log2(e) in it the "
           "power of 2 costs none: exp would multiply each score by log2(e) once more, beside the tensor cores.",
    section="The kernels, exact",
    used_by=LESSON,
)

KEYS = Exercise(
    id="4.12",
    targets=(Target.parse(f"{DECODE}:find_keys"),),
    title="Where a key lies",
    minutes=10,
    difficulty=2,
    teaches="A kernel reads a paged cache as it is: an entry of the block table for each key of a tile, then the key.",
    hints=(
        "Blocks have 16 slots, and a row of 40 keys has three of them: 7, 3, 5. A tile holds keys 32 to 63. Which "
        "entries of the table do these ask for, and which of them are there?",
        "Which entry: the key's number by BLOCK_SIZE, rounded down: keys // BLOCK_SIZE. Its slot: what is left over.\n"
        "Load these entries: tl.load takes table_ptr plus them.\n"
        "Keys that are not `inside` have no entry: they are the mask, and other=0 stands for what is not loaded.\n"
        "Blocks are made 64 bits wide, .to(tl.int64): they are multiplied by the size of a block next.",
        "blocks = tl.load(table_ptr + keys // BLOCK_SIZE, mask=____, other=0)\n"
        "return blocks.to(tl.int64), keys % BLOCK_SIZE",
    ),
    notice="Sixteen keys of a block load the same entry, and the table is small: it comes out of the cache. What costs "
           "is the order: no address of K is known before the table's answer is there.",
    section="The kernels, exact",
    used_by=LESSON,
    core=False,
)

CORE = (TILE,)
FURTHER = (KEYS,)
