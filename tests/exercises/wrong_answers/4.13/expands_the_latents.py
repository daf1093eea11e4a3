"""Expands the latents."""

import torch

from minillm.attention import reference, variants

DIAGNOSIS = "forbidden"


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    k, v = variants.expand_latent(latent, k_rope, w_uk, w_uv)
    q = torch.cat([q_nope, q_rope], dim=-1)
    return reference.causal_attention(q, k, v, q.shape[-1] ** -0.5)
