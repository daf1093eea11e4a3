"""Expands after all."""

import torch

from minillm.attention import variants

DIAGNOSIS = "forbidden"


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    return variants.mla_expanded(q_nope, q_rope, latent, k_rope, w_uk, w_uv)
