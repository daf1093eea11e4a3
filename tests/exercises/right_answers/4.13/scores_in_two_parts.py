"""Scores in two parts."""

import torch

from minillm.attention.variants import mla_scale, values_from_latent


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    scale = mla_scale(q_nope.shape[-1], q_rope.shape[-1])
    q = absorb(q_nope, q_rope, w_uk)
    q_latent, q_rope = q.split([latent.shape[1], k_rope.shape[1]], dim=-1)
    scores = torch.einsum("qhr,kr->hqk", q_latent, latent) + torch.einsum("qhd,kd->hqk", q_rope, k_rope)
    hidden = torch.ones(scores.shape[1:]).triu(1 + len(latent) - len(q)).bool()
    weights = (scores * scale).masked_fill(hidden, float("-inf")).softmax(-1)
    out = torch.einsum("hqk,kr->qhr", weights, latent)
    return values_from_latent(out, w_uv)
