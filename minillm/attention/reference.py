"""Attention written out, one line per idea. Slow, and what every faster form is tested against.

Shapes: S_q queries, S_k keys, H query heads, H_kv key/value heads (H a multiple of H_kv), D values per head.
When keys outnumber queries the queries are the *last* S_q of the S_k positions (the mask is bottom-right aligned):
query i stands at position i + S_k - S_q and sees keys j <= i + S_k - S_q.
"""

from __future__ import annotations

import torch


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device | str) -> torch.Tensor:
    """Boolean [S_q, S_k], True where query i may see key j: none that is later, and with a window none too far back.

    The queries are the last S_q of the S_k positions; of more queries than keys the first see none. With a window of W
    each query sees at most W keys, itself included (Mistral's convention).
    """
    i = torch.arange(queries, device=device)[:, None] + (keys - queries)  # [S_q, 1] position of each query
    j = torch.arange(keys, device=device)[None, :]  # [1, S_k]
    visible = j <= i  # [S_q, S_k]
    if window is not None:
        visible &= j > i - window
    return visible


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """Causal attention of one sequence: softmax(q·kᵀ·scale + mask)·v, head by head (Vaswani et al. 2017).

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v] -> [S_q, H, D_v], in q's dtype. With fewer K/V heads than
    query heads, each K/V head serves a run of H / H_kv neighbouring query heads (GQA, Ainslie et al. 2023). The
    queries are the last S_q positions. `window`: keys visible to each query, itself included.
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat_interleave(heads // kv_heads, dim=1)  # [S_k, H, D]
    v = v.repeat_interleave(heads // kv_heads, dim=1)  # [S_k, H, D_v]
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    visible = causal_mask(queries, keys, window, q.device)  # [S_q, S_k]
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.softmax(scores, dim=-1)  # each row sums to 1
    return torch.einsum("hqk,khd->qhd", weights, v)  # [S_q, H, D_v]


def ragged_attention(
    q: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    query_lens: list[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Causal attention of B sequences whose queries are laid end to end, each with keys of its own.

    q [T, H, D] with T = sum(query_lens); keys[b] [S_b, H_kv, D], values[b] [S_b, H_kv, D_v] -> [T, H, D_v].
    No row sees another row's keys, and nothing is padded.
    """
    outputs = []
    start = 0
    for k, v, length in zip(keys, values, query_lens):
        outputs.append(causal_attention(q[start : start + length], k, v, scale, window))
        start += length
    return torch.cat(outputs)  # [T, H, D_v]
