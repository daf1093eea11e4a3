"""Step 4, attention: six puzzles that lead into Triton, each a kernel beside its specification in torch.

The exercises that are written in torch are in step4_torch, those inside of the attention kernels in step4_kernels.
"""

from __future__ import annotations

from minillm.course import step4_kernels, step4_torch
from minillm.course.exercise import Exercise, Step, Target

STEP = Step(4, "attention", "Attention: variants, tiles and kernels")
PUZZLES = "minillm.kernels.puzzles"
TRITON = "A gentle way into Triton"


def kernel(name: str) -> dict[str, object]:
    """What a puzzle asks for: the kernel `name`_kernel, with its specification above and its launcher below it."""
    return {
        "targets": (Target.parse(f"{PUZZLES}:{name}_kernel"),),
        "given": (Target.parse(f"{PUZZLES}:{name}_reference"),),
        "launcher": Target.parse(f"{PUZZLES}:{name}"),
        "minutes": 10,
        "section": TRITON,
        "used_by": ("04_attention",),
        "core": False,
        "warm_up": True,
    }


ADD = Exercise(
    id="4.1",
    **kernel("add"),
    title="Puzzle: add two vectors",
    difficulty=1,
    teaches="A kernel is one program of many. Its number says which elements are its own.",
    hints=(
        "A block has 4 elements. Which ones belong to program 0, which to program 1, and what do you add to 0, 1, 2, 3 "
        "to get the second four?",
        "The places of this program's elements: its number, tl.program_id(0), times BLOCK, and tl.arange(0, BLOCK) "
        "added to that: a block of numbers.\n"
        "Load that block of x: tl.load takes the pointer plus the places.\n"
        "The same of y.\n"
        "Store their sum in out, at the same places.",
        "at = ____ + tl.arange(0, BLOCK)\n"
        "x = tl.load(x_ptr + at)\n"
        "y = tl.load(y_ptr + at)\n"
        "tl.store(out_ptr + at, x + y)",
    ),
    notice="Nothing in it says when a program runs: a GPU may run all of them at once, or in any order. That is why no "
           "program may need what another one stores.",
)

GAPS = Exercise(
    id="4.2",
    **kernel("gaps"),
    title="Puzzle: load with a mask",
    difficulty=1,
    teaches="A mask says which elements there are; `other` stands for those that there are not.",
    hints=(
        "There are 5 times and blocks of 4. Which places does program 1 compute, which of them exist? And what stands "
        "before the very first time?",
        "The places of this program's elements, as in 4.1.\n"
        "Which of them exist: those below count.\n"
        "Load the times at these places, with that as the mask.\n"
        "Load those one place earlier: here a place has to be above 0 too, and where the mask is off, other=0.0 is "
        "what one gets.\n"
        "Store the difference, with a mask again.",
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "inside = at < count\n"
        "now = tl.load(times_ptr + at, mask=inside)\n"
        "before = tl.load(times_ptr + at - 1, mask=____, other=0.0)\n"
        "tl.store(out_ptr + at, now - before, mask=inside)",
    ),
    notice="Masked off without `other`, a value is anything at all. In `now` that does no harm: nobody stores it. In "
           "`before` the first place is stored, so what it gets there has to be said.",
)

ROW_SUM = Exercise(
    id="4.3",
    **kernel("row_sum"),
    title="Puzzle: sum each row",
    difficulty=1,
    teaches="A block becomes one number; where a row begins is a matter of strides, and a sum is kept wide.",
    hints=(
        "Rows of 3 lie 5 elements apart, and a block has 4. Where does row 2 begin, what lies behind its third "
        "element, and what must that count as in a sum?",
        "Which row: the program's number.\n"
        "The columns: a block from 0 to BLOCK - 1.\n"
        "Load the row: its begin is row times row_stride; those columns below width exist, the others count as 0.\n"
        "Make it float32, sum it along axis 0, store the one number at place row of out.",
        "row = tl.program_id(0)\n"
        "columns = tl.arange(0, BLOCK)\n"
        "x = tl.load(x_ptr + ____ + columns, mask=columns < width, other=0.0)\n"
        "tl.store(out_ptr + row, tl.sum(x.to(tl.float32), axis=0))",
    ),
    notice="A tensor cut out of a wider one has rows that lie apart: row times width is right in every test but that. "
           "And float16 ends at 65,504: two values of 60,000 are enough.",
)

SOFTMAX = Exercise(
    id="4.4",
    **kernel("softmax"),
    title="Puzzle: softmax of each row",
    difficulty=2,
    teaches="Load a row once and do all of it there: two reductions and no step back to memory between them.",
    hints=(
        "e^0 is 1. What must stand behind the end of a row so that it adds nothing to a sum of powers, and is never "
        "the largest value either?",
        "Row, columns and mask as in 4.3.\n"
        "Load the row; what does not exist counts as minus infinity.\n"
        "The powers: tl.exp of the row less its largest value, tl.max along axis 0.\n"
        "Store the powers over their sum, where there are columns. Rows of out lie width apart.",
        "row = tl.program_id(0)\n"
        "columns = tl.arange(0, BLOCK)\n"
        "inside = columns < width\n"
        'x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=float("-inf"))\n'
        "powers = tl.exp(x - ____)\n"
        "tl.store(out_ptr + row * width + columns, powers / tl.sum(powers, axis=0), mask=inside)",
    ),
    notice="In torch, operation by operation, the row goes to memory and back after each of them. Here it is loaded "
           "once and stored once: that is what fusing is.",
)

MATMUL = Exercise(
    id="4.5",
    **kernel("matmul"),
    title="Puzzle: a matrix product in tiles",
    difficulty=2,
    teaches="A program makes one tile of the result: it goes along K tile by tile, and adds up products of tiles.",
    hints=(
        "A tile of the result has 2 rows and 2 columns, and K is 5. How many tiles of a and of b does its program "
        "load, and what of the last pair must count as 0?",
        "For every BLOCK of K: which columns of a and rows of b these are (inner).\n"
        "Load the tile of a: rows as a column of numbers, rows[:, None], times K, plus inner[None, :]. Both have to "
        "exist, below M and below K, and what does not counts as 0.\n"
        "Load the tile of b likewise: inner down, columns across, N apart.\n"
        "Add their product, tl.dot(a, b, input_precision=\"ieee\"), to acc.",
        "for start in range(0, K, BLOCK):\n"
        "    inner = ____\n"
        "    a = tl.load(a_ptr + rows[:, None] * K + inner[None, :],\n"
        "                mask=(rows[:, None] < M) & (inner[None, :] < K), other=0.0)\n"
        "    b = tl.load(b_ptr + inner[:, None] * N + columns[None, :],\n"
        "                mask=(inner[:, None] < K) & (columns[None, :] < N), other=0.0)\n"
        "    acc += tl.dot(a, b, input_precision=\"ieee\")",
    ),
    notice="A row of a is loaded once for each tile of columns. Twice the tile's side, half the bytes: that is why "
           "tiles are as large as what is on the chip allows.",
)

GATHER = Exercise(
    id="4.6",
    **kernel("gather"),
    title="Puzzle: tokens through a block table",
    difficulty=2,
    teaches="An address may itself be loaded: so a kernel finds a token in a paged cache.",
    hints=(
        "Blocks have 16 slots, and the table is 7, 3. In which block is token 20, at which of its slots, and how many "
        "tokens of the cache stand before it in memory?",
        "Which token: the program's number.\n"
        "Its block: loaded from the table, at place token // BLOCK_SIZE.\n"
        "Its slot in the whole cache: block times BLOCK_SIZE, plus what is left, token % BLOCK_SIZE.\n"
        "Load its values: slot times width, plus a block of columns, those below width.\n"
        "Store them in row token of out, likewise.",
        "token = tl.program_id(0)\n"
        "block = tl.load(table_ptr + token // BLOCK_SIZE)\n"
        "slot = ____\n"
        "columns = tl.arange(0, WIDTH)\n"
        "values = tl.load(blocks_ptr + slot * width + columns, mask=columns < width)\n"
        "tl.store(out_ptr + token * width + columns, values, mask=columns < width)",
    ),
    notice="Ours makes the block's number 64 bits wide: a cache of more than 2**31 values is not rare, and 32 bits "
           "would turn round without a word.",
)

EXERCISES = (ADD, GAPS, ROW_SUM, SOFTMAX, MATMUL, GATHER, *step4_torch.CORE, *step4_kernels.CORE,
             *step4_kernels.FURTHER, *step4_torch.FURTHER)
