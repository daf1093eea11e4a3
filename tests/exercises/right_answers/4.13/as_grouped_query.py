"""As grouped query."""

import torch

from minillm.attention import reference
from minillm.attention.variants import grouped_query, mla_scale


def absorb(q_nope, q_rope, w_uk):
    q_latent = torch.einsum("shn,hnr->shr", q_nope, w_uk)
    return torch.cat([q_latent, q_rope], dim=-1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    mask = reference.causal_mask(len(q_nope), len(latent), None, latent.device)
    scale = mla_scale(q_nope.shape[-1], q_rope.shape[-1])
    k = torch.cat([latent, k_rope], dim=-1)[:, None]
    out = grouped_query(absorb(q_nope, q_rope, w_uk), k, k[..., : latent.shape[-1]], scale, mask)
    return torch.einsum("shr,hvr->shv", out, w_uv)
