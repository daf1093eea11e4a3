"""The variants of attention side by side: what each keeps of a token, and the few lines in which it differs.

Plain and slow, for reading; `reference` has the form that the others are tested against. What a variant stores, moves
per decoded token, and its FLOPs per byte are in `measure.cost`, from a `ModelShape` or an `MLAShape`.

S_q queries, the last of S_k positions; H query heads, H_kv key/value heads, D values of a key, D_v of a value.
`visible` [S_q, S_k] is True where query i may see key j. Every row must see at least one key.
"""

from __future__ import annotations

import torch

from minillm.attention import reference


def multi_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: torch.Tensor) -> torch.Tensor:
    """MHA: every head has K and V of its own (Vaswani et al. 2017). Kept of a token: H * (D + D_v) values.

    q [S_q, H, D], k [S_k, H, D], v [S_k, H, D_v] -> [S_q, H, D_v].
    """
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale  # [H, S_q, S_k]
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)  # [S_q, H, D_v]


def multi_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, visible: torch.Tensor) -> torch.Tensor:
    """MQA: all heads share one K and one V (Shazeer 2019). Kept of a token: D + D_v values.

    q [S_q, H, D], k [S_k, D], v [S_k, D_v] -> [S_q, H, D_v].
    """
    scores = torch.einsum("qhd,kd->hqk", q, k) * scale  # [H, S_q, S_k]
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hqk,kd->qhd", weights, v)  # [S_q, H, D_v]


def expand_kv_heads(kv: torch.Tensor, heads: int) -> torch.Tensor:
    """K or V as each query head sees it: [S_k, H_kv, D] -> [S_k, H, D], heads = H a multiple of H_kv.

    Each K/V head serves a run of H / H_kv neighbouring query heads: a b -> a a b b.
    """
    group = heads // kv.shape[1]
    return kv.repeat_interleave(group, dim=1)


def grouped_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
                  visible: torch.Tensor) -> torch.Tensor:
    """GQA: H / H_kv query heads share a K/V head (Ainslie et al. 2023). Kept of a token: H_kv * (D + D_v) values.

    q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v], visible [S_q, S_k] -> [S_q, H, D_v]. H_kv = H is MHA, H_kv = 1
    is MQA.
    """
    heads = q.shape[1]
    return multi_head(q, expand_kv_heads(k, heads), expand_kv_heads(v, heads), scale, visible)


def sliding_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """Each query sees the last `window` keys, itself included (Mistral 7B, 2023). Kept: those of `window` tokens.

    Shapes as `grouped_query`. What lies further back still has its effect, layer by layer.
    """
    visible = reference.causal_mask(len(q), len(k), window, q.device)  # [S_q, S_k]
    return grouped_query(q, k, v, scale, visible)


def sink_mask(queries: torch.Tensor, keys: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """Boolean [S_q, S_k] from the positions of queries [S_q] and keys [S_k]: the last `window` keys and the first
    `sinks` of the text are visible, and none that comes later."""
    i, j = queries[:, None], keys[None, :]
    near = j > i - window
    return (j <= i) & (near | (j < sinks))  # [S_q, S_k]


def with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int,
               sinks: int) -> torch.Tensor:
    """A window, and the first `sinks` tokens beside it (StreamingLLM, Xiao et al. 2023). Kept: window + sinks tokens.

    Shapes as `grouped_query`. Trained without a window, heads put the weight that they need nowhere on the first
    tokens; a window that drops those breaks the model. Positions stay those of the text here; StreamingLLM counts them
    anew inside the window, which matters once the text is longer than the model was trained for.
    """
    keys = torch.arange(len(k), device=q.device)
    return grouped_query(q, k, v, scale, sink_mask(keys[len(k) - len(q) :], keys, window, sinks))


# Multi-head latent attention (MLA, DeepSeek-V2, 2024). Of a token only a latent c [R] and one rotated key part [D_r],
# shared by all heads, are kept. Head h's key is W_UK[h]·c beside the rotated part, its value W_UV[h]·c:
#     w_uk [H, D_n, R], w_uv [H, D_v, R].


def mla_scale(nope_dim: int, rope_dim: int) -> float:
    """What multiplies q·k: 1/√(D_n + D_r), a head's expanded key, in both forms.

    The absorbed key is R + D_r values long, but its products are the same numbers, so its length has no say.
    """
    return (nope_dim + rope_dim) ** -0.5


def expand_latent(latent: torch.Tensor, k_rope: torch.Tensor, w_uk: torch.Tensor,
                  w_uv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of every head out of the latent [S, R] and k_rope [S, D_r]: k [S, H, D_n + D_r], v [S, H, D_v]."""
    k_nope = torch.einsum("sr,hnr->shn", latent, w_uk)  # [S, H, D_n]
    shared = k_rope[:, None, :].expand(-1, k_nope.shape[1], -1)  # [S, H, D_r], the same for every head
    return torch.cat([k_nope, shared], dim=-1), torch.einsum("sr,hvr->shv", latent, w_uv)


def absorb(q_nope: torch.Tensor, q_rope: torch.Tensor, w_uk: torch.Tensor) -> torch.Tensor:
    """The query that meets the latent itself: q_nope [S, H, D_n], q_rope [S, H, D_r] -> [S, H, R + D_r].

    w_uk [H, D_n, R] makes head h's key of a latent c [R]: W_UK[h]·c, and the rotated part stands behind it.
    q·(W_UK·c) = (W_UKᵀ·q)·c: the up-projection is done once for the query instead of once for every key.
    """
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)  # [S, H, R]
    return torch.cat([q_latent, q_rope], dim=-1)


def values_from_latent(out: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """What heads would have found in their values: out [S, H, R], means of latents, w_uv [H, D_v, R] -> [S, H, D_v]."""
    return torch.einsum("shr,hvr->shv", out, w_uv)


def mla_expanded(q_nope: torch.Tensor, q_rope: torch.Tensor, latent: torch.Tensor, k_rope: torch.Tensor,
                 w_uk: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """MLA as the paper defines it: expand the latents, then attend as MHA does.

    q_nope [S_q, H, D_n], q_rope [S_q, H, D_r], latent [S_k, R], k_rope [S_k, D_r] -> [S_q, H, D_v].
    """
    q = torch.cat([q_nope, q_rope], dim=-1)  # [S_q, H, D_n + D_r]
    k, v = expand_latent(latent, k_rope, w_uk, w_uv)
    return reference.causal_attention(q, k, v, mla_scale(q_nope.shape[-1], q_rope.shape[-1]))


def mla_absorbed(q_nope: torch.Tensor, q_rope: torch.Tensor, latent: torch.Tensor, k_rope: torch.Tensor,
                 w_uk: torch.Tensor, w_uv: torch.Tensor) -> torch.Tensor:
    """MLA as MQA over the latents: one K head of R + D_r values, whose first R are its V. Causal, as `mla_expanded`.

    q_nope [S_q, H, D_n], q_rope [S_q, H, D_r], latent [S_k, R], k_rope [S_k, D_r] -> [S_q, H, D_v].
    """
    scale = mla_scale(q_nope.shape[-1], q_rope.shape[-1])
    k = torch.cat([latent, k_rope], dim=-1)[:, None]  # [S_k, 1, R + D_r]
    v = latent[:, None]  # [S_k, 1, R]
    out = reference.causal_attention(absorb(q_nope, q_rope, w_uk), k, v, scale)  # [S_q, H, R]
    return values_from_latent(out, w_uv)
