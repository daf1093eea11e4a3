"""Bug hunts: code with one mistake in it that easy tests do not see, and the smallest input that does."""

from __future__ import annotations

import torch

from minillm.attention import flash, reference
from minillm.cache.prefix import hash_block

BLOCK = 2  # tokens of a block in reused_with_a_bug and in let_in_with_a_bug


def attention_with_a_bug(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one sequence, with one mistake in it.

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v] -> [S_q, H, D_v].
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat(1, heads // kv_heads, 1)  # [S_k, H, D]
    v = v.repeat(1, heads // kv_heads, 1)  # [S_k, H, D_v]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    scores = scores.masked_fill(~reference.causal_mask(queries, keys, None, q.device), float("-inf"))
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), v)  # [S_q, H, D_v]


def smallest_sizes() -> dict[str, int]:
    """Sizes of the smallest input on which attention_with_a_bug is wrong: queries, keys, heads and kv_heads.

    The check makes q, k and v of these sizes (D = D_v = 1, random numbers) and compares with the right attention. heads
    is a multiple of kv_heads, and there are no more queries than keys. Smallest: the fewest numbers in q, k and v.
    """
    return {"queries": 1, "keys": 1, "heads": 4, "kv_heads": 2}


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
    return [8, 9, 1, 2], [1, 2, 3]


def let_in_with_a_bug(num_blocks: int, left: list[int], arriving: list[list[int]]) -> list[int]:
    """Which of the prompts in `arriving` (0: the first, …) are let in together, in a pool of num_blocks blocks.

    Nobody runs. A request that has ended left its tokens, `left`: its full blocks are idle, two tokens each. A prompt
    begins with those that it begins with, which others may share; the last token is always computed. All that are let
    in are then computed in one step. There is one mistake in it.
    """
    available = num_blocks  # the free ones and the idle ones
    places: list[int] = []
    for place, prompt in enumerate(arriving):
        known = 0  # blocks that need no computing
        while (end := (known + 1) * BLOCK) <= min(len(left), len(prompt) - 1) and prompt[:end] == left[:end]:
            known += 1
        needed = -(-len(prompt) // BLOCK) - known
        if needed > available:
            break  # nobody overtakes
        available -= needed
        places.append(place)
    return places


def smallest_crowd() -> tuple[int, list[int], list[list[int]]]:
    """(num_blocks, left, arriving) for let_in_with_a_bug, which lets in prompts that need more blocks than there are.

    A block that several of them share is needed once. Each prompt has a token at least, and alone it would fit, as did
    what was left. Smallest: the fewest tokens in left and arriving together.
    """
    return 2, [1, 2], [[1, 2, 3], [9]]


def seen_with_a_bug(queries: int, keys: int, block: int, window: int) -> torch.Tensor:
    """Which keys each query sees if attention goes by tiles of `block` queries and `block` keys: [S_q, S_k], boolean.

    It should be those of `reference.causal_mask`: the queries are the last of the positions, and each sees the last
    `window` keys up to itself. There is one mistake in it.
    """
    mask = reference.causal_mask(queries, keys, window, "cpu")
    seen = torch.zeros_like(mask)
    for rows in flash.tiles(range(queries), block):
        first, last = rows[0] + keys - queries, rows[-1] + keys - queries  # positions of the tile's queries
        for columns in flash.tiles(range(keys), block):
            tile = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
            if columns[0] > last or columns[-1] <= first - window:
                continue  # too late or too old for all of the tile's queries: it is skipped
            if columns[-1] > first:  # some keys are too late for some queries
                seen[tile] = mask[tile]
            else:
                seen[tile] = True  # no mask is needed
    return seen


def smallest_leak() -> dict[str, int]:
    """Sizes of the smallest input on which seen_with_a_bug is wrong: queries, keys, block and window.

    Each is at least 1, and there are no more queries than keys. Smallest: the fewest queries and keys together.
    """
    return {"queries": 1, "keys": 2, "block": 2, "window": 1}
