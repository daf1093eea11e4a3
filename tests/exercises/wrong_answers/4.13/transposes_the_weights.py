"""Transposes the weights."""

import torch

from minillm.attention import reference
from minillm.attention.variants import mla_scale, values_from_latent

DIAGNOSIS = "transposed"


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hrn->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    scale = mla_scale(q_nope.shape[-1], q_rope.shape[-1])
    k = torch.cat([latent, k_rope], dim=-1)[:, None]
    out = reference.causal_attention(absorb(q_nope, q_rope, w_uk), k, latent[:, None], scale)
    return values_from_latent(out, w_uv)
