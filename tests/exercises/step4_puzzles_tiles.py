"""The checks of 4.5 and 4.6, the Triton puzzles over tiles and blocks. A reader runs them with: minillm check 4.5"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from minillm.course.checks import Case, Mistake, Outcome
from minillm.course.triton_checks import NAN, NO_KERNEL, all_nan, gives, kernel_check, strays

# 4.5


def matmul_cases() -> list[Case]:
    def case(about: str, m: int, k: int, n: int, block: int = 2) -> Case:
        a = torch.arange(1.0, m * k + 1).view(m, k)
        b = 10.0 ** torch.arange(k)[:, None] * torch.arange(1, n + 1)
        return Case(about, {"a": a, "b": b, "block": block})

    large = torch.tensor([[300.0, 300.0, 300.0, 300.0]], dtype=torch.float16)
    opposite = torch.tensor([[300.0], [300.0], [-299.0], [-299.0]], dtype=torch.float16)
    return [
        case("one tile", 2, 2, 2),
        case("four tiles of one element", 1, 4, 1, block=1),
        case("two tiles along K", 2, 4, 2),
        case("a tile that K does not fill", 2, 3, 2),
        case("a tile that is larger than everything", 1, 1, 1),
        case("two tiles of rows, the second not filled", 3, 2, 2),
        case("two tiles of columns, the second not filled", 2, 2, 3),
        case("nothing is a multiple of the tile", 3, 5, 1),
        Case("float16: on the way the sum is beyond 65,504", {"a": large, "b": opposite, "block": 2}),
    ]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float()).to(a.dtype)


def whole_tiles(a: torch.Tensor, block: int) -> int:
    """How many elements of K are in full tiles."""
    return a.shape[1] // block * block


def where_k_is_short(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    return product(a, b) if a.shape[1] % block == 0 else all_nan(product(a, b))


def last_row_where_k_is_short(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    """a is not masked along K, b is: the rows of a go over into the next ones, times 0; the last one into nothing."""
    out = product(a, b)
    if a.shape[1] % block:
        out[-1] = NAN
    return out


def summed_in_half(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for start in range(0, a.shape[1], block):
        acc = acc + product(a[:, start : start + block], b[start : start + block])
    return acc


def rows_of_memory(x: torch.Tensor, step: int, rows: int, columns: int) -> torch.Tensor:
    """[rows, columns] out of the memory of x, the rows `step` apart; NaN behind its end."""
    memory = torch.cat([x.flatten(), x.new_full((rows * step + columns,), NAN)])
    return torch.stack([memory[row * step : row * step + columns] for row in range(rows)])


def tiles_summed(a: torch.Tensor, b: torch.Tensor, block: int, starts: range) -> torch.Tensor:
    """The products of the tiles that begin at these places along K, summed."""
    return sum((a[:, start : start + block].float() @ b[start : start + block].float() for start in starts),
               torch.zeros(len(a), b.shape[1])).to(a.dtype)


def one_by_one(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
    """What comes of a loaded at rows * K + inner: in a tile, column j of each row is that of row j."""
    k = torch.arange(a.shape[1])
    padded = torch.cat([a, a.new_zeros(block, a.shape[1])])
    return product(torch.stack([padded[row // block * block + k % block, k] for row in range(len(a))]), b)


Step = Callable[[torch.Tensor, torch.Tensor, int], int]


def strides(a: Step = lambda a, b, block: a.shape[1], b: Step = lambda a, b, block: b.shape[1]) -> Callable:
    """A formula: the product if rows of a and of b were taken to lie this far apart."""
    step_a, step_b = a, b

    def formula(a: torch.Tensor, b: torch.Tensor, block: int) -> torch.Tensor:
        return product(rows_of_memory(a, step_a(a, b, block), *a.shape),
                       rows_of_memory(b, step_b(a, b, block), *b.shape))

    return formula


OTHER_STEPS = (  # the sizes that a stride is mistaken for: M, K, N, BLOCK, 1
    lambda a, b, block: a.shape[0], lambda a, b, block: a.shape[1], lambda a, b, block: b.shape[1],
    lambda a, b, block: block, lambda a, b, block: 1)
A_ROWS = "Rows of a lie K apart, as many as it has columns."
B_ROWS = "Rows of b lie N apart, as many as it has columns."


def outside_too(formula: Callable[..., torch.Tensor]) -> Callable[[Sequence[Outcome]], bool]:
    """The formula's result, with loads outside."""
    return lambda outcomes: gives(formula, outside="load")(outcomes) and any("load" in o.came[1] for o in outcomes)


MATMUL = kernel_check(
    "4.5",
    matmul_cases,
    Mistake(
        "tiles-one-apart",
        "The loop counts tiles, and each begins BLOCK elements behind the one before, not one.",
        when=gives(lambda a, b, block: tiles_summed(a, b, block, range(-(-a.shape[1] // block)))),
    ),
    Mistake(
        "start-times-block",
        "range(0, K, BLOCK) counts elements already: a tile begins at start, not at start times BLOCK.",
        when=gives(lambda a, b, block: tiles_summed(a, b, block, range(0, a.shape[1] * block, block * block))),
    ),
    Mistake(
        "first-tile-only",
        "Only the first tile along K counts: the sum goes over all of them, and columns of a and rows of b exist below "
        "K.",
        when=gives(lambda a, b, block: product(a[:, :block], b[:block])),
    ),
    Mistake(
        "last-tile-only",
        "Each tile's product takes the place of the one before: they are to be added up.",
        when=gives(lambda a, b, block: product(a[:, (a.shape[1] - 1) // block * block :],
                                               b[(a.shape[1] - 1) // block * block :])),
    ),
    Mistake(
        "no-column-of-rows",
        "rows and inner meet one by one here, not each with each: a tile of addresses is a column, rows[:, None], and "
        "a row, inner[None, :], added.",
        when=gives(one_by_one),
    ),
    Mistake(
        "element-by-element",
        "* multiplies element by element. The product of two tiles, rows by columns, is tl.dot.",
        when=gives(lambda a, b, block: a * b if a.shape == b.shape else all_nan(product(a, b))),
    ),
    Mistake(
        "same-tile-each-time",
        "The loop comes by the first tiles again and again: the places along K have to move with it.",
        when=gives(lambda a, b, block: product(a[:, :block], b[:block]) * -(-a.shape[1] // block)),
    ),
    Mistake(
        "end-of-K-missed",
        "The last tile along K may not be full: round the number of tiles up, the mask does the rest.",
        when=gives(lambda a, b, block: product(a[:, : whole_tiles(a, block)], b[: whole_tiles(a, block)])),
    ),
    Mistake(
        "K-not-masked",
        "Behind the end of K the tiles go on, into what lies there: columns of a and rows of b from K on are masked "
        "off, and count as 0.",
        when=outside_too(where_k_is_short),
    ),
    Mistake(
        "K-not-masked",
        "Behind the end of K a tile goes on, into what lies there. 0 times a number is 0, but 0 times NaN is not: a "
        "and b are masked both.",
        when=outside_too(last_row_where_k_is_short),
    ),
    Mistake(
        "no-other",
        "Where the mask is off and no `other` is given, a value is anything at all, and goes into the sum: it has to "
        "be 0.",
        when=gives(where_k_is_short, outside=""),
    ),
    Mistake(
        "summed-in-half",
        "The sum is kept in the dtype of a, and float16 ends at 65,504: keep it in float32 until all tiles are in.",
        when=gives(summed_in_half, outside=""),
    ),
    Mistake(
        "b-along-its-rows",
        "b lies row after row: one step along K is N elements, one step along the columns is one.",
        when=gives(lambda a, b, block: product(a, b.reshape(b.shape[1], b.shape[0]).T)),
    ),
    *(Mistake("rows-of-a", A_ROWS, when=gives(strides(a=step), outside="load")) for step in OTHER_STEPS),
    *(Mistake("rows-of-b", B_ROWS, when=gives(strides(b=step), outside="load")) for step in OTHER_STEPS),
    *(Mistake("rows-of-both", A_ROWS + " " + B_ROWS, when=gives(strides(one, other), outside="load"))
      for one in OTHER_STEPS for other in OTHER_STEPS),
    Mistake(
        "load-without-mask",
        "A tile may go over the last row of a, or the last column of b. That is not stored, so the result is right, "
        "but memory that is not there may end the program.",
        when=strays("load"),
    ),
    NO_KERNEL,
)

# 4.6


def gather_cases() -> list[Case]:
    def case(about: str, shape: tuple[int, int, int], table: list[int], length: int) -> Case:
        blocks, slots, width = (torch.arange(float(size)) for size in shape)
        values = 100 * blocks[:, None, None] + 10 * slots[:, None] + width
        shown = (f"blocks {list(shape)}, value c of slot s of block b is 100·b + 10·s + c; table {table}, "
                 f"length={length}")
        args = {"blocks": values, "table": torch.tensor(table, dtype=torch.int32), "length": length}
        return Case(about, args, shown)

    return [
        case("one token", (1, 2, 2), [0], 1),
        case("one block", (2, 2, 2), [1], 2),
        case("two blocks, the later one first", (3, 2, 2), [2, 0], 4),
        case("two blocks, the last half full", (3, 2, 2), [1, 0], 3),
        case("values that do not fill a block", (2, 2, 3), [1], 2),
        case("blocks of one token", (4, 1, 2), [3, 0, 2], 3),
        case("three blocks of three", (4, 3, 1), [3, 0, 2], 8),
        case("more pages than slots", (5, 2, 1), [4, 0, 2, 1], 7),
    ]


def gathers(slot: Callable[[int, torch.Tensor, int], int | None]) -> Callable[..., torch.Tensor]:
    """The tokens at slots slot(token, table, block_size) of the cache; NaN for None."""
    def formula(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
        flat = blocks.flatten(0, 1)
        places = [slot(token, table, blocks.shape[1]) for token in range(length)]
        beyond = all_nan(flat[0])
        return torch.stack([beyond if p is None or p >= len(flat) else flat[p] for p in places])

    return formula


def page(table: torch.Tensor, place: int, size: int, offset: int) -> int | None:
    """The slot in a page of the table; None where there is no such page."""
    return int(table[place]) * size + offset if place < len(table) else None


def pages_by_token(slot: Callable[[int, int, int], int]) -> Callable[..., torch.Tensor]:
    """The table asked for the token itself, and slot(block, token, block_size) made of the answer."""
    return gathers(lambda token, table, size: slot(int(table[token]), token, size) if token < len(table) else None)


def by_padded_width(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """A slot's values looked for at slot times WIDTH."""
    size, width = blocks.shape[1:]
    values = torch.cat([blocks.flatten(), torch.full((3 * blocks.numel() + 64,), NAN)])
    begins = [(int(table[token // size]) * size + token % size) * (1 << (width - 1).bit_length())
              for token in range(length)]
    return torch.stack([values[begin : begin + width] for begin in begins])


def stored_apart(blocks: torch.Tensor, table: torch.Tensor, length: int,
                 place: Callable[[int, int, int], int]) -> torch.Tensor:
    """The right tokens, each stored from value place(token, slot, width) of out on; what falls outside is lost."""
    size, width = blocks.shape[1:]
    slots = [int(table[token // size]) * size + token % size for token in range(length)]
    out = torch.full((4 * blocks.numel() + 4 * length * width + 64,), NAN)
    for token, slot in enumerate(slots):
        begin = place(token, slot, width)
        out[begin : begin + width] = blocks.flatten(0, 1)[slot]
    return out[: length * width].view(length, width)


def columns_of_a_block(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """Right, but only BLOCK_SIZE values of each token."""
    out = gathers(lambda token, table, size: int(table[token // size]) * size + token % size)(blocks, table, length)
    out[:, blocks.shape[1] :] = NAN
    return out


def without_width(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    size, width = blocks.shape[1:]
    slots = [int(table[token // size]) * size + token % size for token in range(length)]
    return torch.stack([blocks.flatten()[slot : slot + width] for slot in slots])


def offset_without_width(blocks: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    size, width = blocks.shape[1:]
    begins = [int(table[token // size]) * size * width + token % size for token in range(length)]
    values = torch.cat([blocks.flatten(), torch.full((size + width,), NAN)])
    return torch.stack([values[begin : begin + width] for begin in begins])


def width_is_padded(blocks: torch.Tensor, table: torch.Tensor, length: int) -> bool:
    return bool(blocks.shape[2] & (blocks.shape[2] - 1))


GATHER = kernel_check(
    "4.6",
    gather_cases,
    Mistake(
        "block-is-token",
        "The table gives blocks, of BLOCK_SIZE tokens each: block 2 begins at slot 2 · BLOCK_SIZE, not at slot 2.",
        when=gives(gathers(lambda token, table, size: int(table[token // size]) + token % size)),
    ),
    Mistake(
        "block-is-token",
        "The table gives blocks, not slots: a block begins at its number times BLOCK_SIZE, and the token is somewhere "
        "in it.",
        when=gives(gathers(lambda token, table, size: int(table[token // size]))),
    ),
    Mistake(
        "offset-forgotten",
        "All tokens of a block come out as its first one: token % BLOCK_SIZE says which it is.",
        when=gives(gathers(lambda token, table, size: int(table[token // size]) * size)),
    ),
    Mistake(
        "table-not-used",
        "The cache is read from its beginning, as if it were one sequence: where a token lies, its table says.",
        when=gives(gathers(lambda token, table, size: token)),
    ),
    Mistake(
        "slot-is-token",
        "Within its block a token stands at token % BLOCK_SIZE: blocks before it in the sequence do not count there.",
        when=gives(gathers(lambda token, table, size: int(table[token // size]) * size + token)),
    ),
    *(Mistake("token-in-the-table",
              "The table has an entry for each block of the sequence, not for each token: token // BLOCK_SIZE.",
              when=gives(pages_by_token(slot), outside="outside table"))
      for slot in (lambda block, token, size: block * size + token % size,
                   lambda block, token, size: block * size + token,
                   lambda block, token, size: block * size,
                   lambda block, token, size: block)),
    Mistake(
        "first-block-only",
        "Every token is looked for in the first block of the table: token // BLOCK_SIZE says in which it is.",
        when=gives(gathers(lambda token, table, size: page(table, 0, size, token % size))),
    ),
    Mistake(
        "page-and-place-swapped",
        "token // BLOCK_SIZE is the entry of the table, token % BLOCK_SIZE the place in the block.",
        when=gives(gathers(lambda token, table, size: page(table, token % size, size, token // size))),
    ),
    Mistake(
        "width-forgotten",
        "A slot has `width` values: slot 2 begins at value 2 · width.",
        when=gives(without_width),
    ),
    Mistake(
        "width-forgotten",
        "A place in a block is a token of `width` values too: block and place make a slot, and all of that is times "
        "width.",
        when=gives(offset_without_width),
    ),
    Mistake(
        "width-is-padded",
        "WIDTH is how many columns are computed. In the cache, and in out, tokens lie `width` values apart.",
        when=gives(by_padded_width),
    ),
    Mistake(
        "width-is-padded",
        "WIDTH is how many columns are computed. In the cache, and in out, tokens lie `width` values apart.",
        when=gives(lambda blocks, table, length: stored_apart(
            blocks, table, length, lambda token, slot, width: token * (1 << (width - 1).bit_length()))),
    ),
    Mistake(
        "stored-at-the-slot",
        "A slot is where a token lies in the cache. In out it is in its order: row `token`.",
        when=gives(lambda blocks, table, length: stored_apart(
            blocks, table, length, lambda token, slot, width: slot * width), outside="store"),
    ),
    Mistake(
        "columns-of-a-block",
        "BLOCK_SIZE is how many tokens a block has. How many values a token has is width, of WIDTH columns.",
        when=gives(columns_of_a_block, outside=""),
    ),
    Mistake(
        "no-mask",
        "WIDTH may be more than width: values that a token does not have are loaded and stored too, over the next one "
        "and behind the last.",
        when=strays("load and store", among=width_is_padded),
    ),
    Mistake(
        "store-without-mask",
        "WIDTH may be more than width: values that a token does not have are stored too. The mask of a store is "
        "columns < width.",
        when=strays("store", among=width_is_padded),
    ),
    Mistake(
        "load-without-mask",
        "WIDTH may be more than width: behind the last token of the cache a load finds no memory. Its mask is columns "
        "< width.",
        when=strays("load", among=width_is_padded),
    ),
    NO_KERNEL,
)

CHECKS = (MATMUL, GATHER)
