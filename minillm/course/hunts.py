"""Bug hunts: code with one mistake in it that easy tests do not see, and the smallest input that does."""

from __future__ import annotations

import torch

from minillm.attention.reference import causal_mask


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
