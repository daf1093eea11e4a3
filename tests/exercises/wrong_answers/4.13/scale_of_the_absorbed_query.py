"""Scale of the absorbed query."""

import torch

from minillm.attention import reference
from minillm.attention.variants import values_from_latent

DIAGNOSIS = "scale-of-the-latent"


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    q = absorb(q_nope, q_rope, w_uk)
    k = torch.cat([latent, k_rope], dim=-1)[:, None]
    out = reference.causal_attention(q, k, latent[:, None], q.shape[-1] ** -0.5)
    return values_from_latent(out, w_uv)
