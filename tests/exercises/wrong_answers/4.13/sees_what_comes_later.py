"""Sees what comes later."""

import torch

from minillm.attention.variants import mla_scale, values_from_latent

DIAGNOSIS = "not-causal"


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    q = absorb(q_nope, q_rope, w_uk)
    k = torch.cat([latent, k_rope], dim=-1)[:, None]
    scores = torch.einsum("qhd,kd->hqk", q, k[:, 0]) * mla_scale(q_nope.shape[-1], q_rope.shape[-1])
    out = torch.einsum("hqk,kr->qhr", scores.softmax(-1), latent)
    return values_from_latent(out, w_uv)
