"""Bug hunts: code with one mistake in it that easy tests do not see, and the smallest input that does."""

from __future__ import annotations

import torch

from minillm.attention.reference import causal_mask
from minillm.cache.prefix import hash_block

BLOCK = 2  # tokens of a block in reused_with_a_bug


def attention_with_a_bug(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one sequence, with one mistake in it.

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v] -> [S_q, H, D_v].
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat(1, heads // kv_heads, 1)  # [S_k, H, D]
    v = v.repeat(1, heads // kv_heads, 1)  # [S_k, H, D_v]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    scores = scores.masked_fill(~causal_mask(queries, keys, None, q.device), float("-inf"))
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
