"""Head by head."""

import torch

from minillm.attention import reference


def absorb(q_nope, q_rope, w_uk):
    parts = [torch.cat([q_nope[:, h] @ w_uk[h], q_rope[:, h]], dim=-1) for h in range(len(w_uk))]
    return torch.stack(parts, dim=1)


def mla_absorbed(q_nope, q_rope, latent, k_rope, w_uk, w_uv):
    q = absorb(q_nope, q_rope, w_uk)
    scale = (q_nope.shape[2] + q_rope.shape[2]) ** -0.5
    k = torch.cat([latent, k_rope], dim=-1)
    visible = reference.causal_mask(len(q), len(k), None, q.device)
    heads = []
    for h, w in enumerate(w_uv):
        scores = (q[:, h] @ k.T * scale).masked_fill(~visible, float("-inf"))
        heads.append(scores.softmax(dim=-1) @ latent @ w.T)
    return torch.stack(heads, dim=1)
