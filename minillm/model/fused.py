"""The same model through fused kernels: residual add with RMSNorm, SwiGLU, RoPE with the write to the cache.

Nothing is copied: every module and parameter is the plain model's own, under the same name. Only what runs between the
projections differs. The residual stream is added as the unfused model adds it, rounding for rounding.
"""

from __future__ import annotations

import torch
from torch import nn

from minillm.kernels.decode_checks import largest_group
from minillm.kernels.rms_norm import WIDEST, add_rms_norm
from minillm.kernels.swiglu import swiglu
from minillm.model import layers
from minillm.model.transformer import Transformer

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class FusedBlock(nn.Module):
    """A Block's four modules. What it adds to the residual stream is handed on, for the next norm's kernel to add."""

    def __init__(self, block: layers.Block) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = block.input_layernorm, block.self_attn
        self.post_attention_layernorm, self.mlp = block.post_attention_layernorm, block.mlp

    def forward(self, residual: torch.Tensor, added: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor,
                step) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream before this block and what is to be added first (None: nothing), both [T, hidden], to
        the same two behind it."""
        if added is None:
            x = self.input_layernorm(residual)
        else:
            x, residual = add_norm(added, residual, self.input_layernorm)
        if isinstance(self.self_attn, layers.Attention):
            x = attention(self.self_attn, x, cos, sin, step)
        else:
            x = self.self_attn(x, cos, sin, step)  # latent attention rotates parts of heads, in its own way
        x, residual = add_norm(x, residual, self.post_attention_layernorm)
        return residual, self.mlp.down_proj(swiglu(self.mlp.gate_proj(x), self.mlp.up_proj(x)))


def add_norm(x: torch.Tensor, residual: torch.Tensor, norm: layers.RMSNorm) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual), [T, hidden] each."""
    return add_rms_norm(x, residual, norm.weight, norm.eps)


def attention(module: layers.Attention, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step) -> torch.Tensor:
    """What `module` does, [T, hidden] -> [T, hidden]; a cache that rotates what it writes is left to do so."""
    tokens = x.shape[0]
    q = module.q_proj(x).view(tokens, module.heads, module.head_dim)  # [T, H, D]
    k = module.k_proj(x).view(tokens, module.kv_heads, module.head_dim)  # [T, H_kv, D]
    v = module.v_proj(x).view(tokens, module.kv_heads, module.head_dim)
    if module.q_norm is not None:
        q, k = module.q_norm(q), module.k_norm(k)
    if hasattr(step.cache, "rotate_and_attend"):
        out = step.cache.rotate_and_attend(module.layer, q, k, v, cos, sin, step)  # [T, H, D]
    else:
        q, k = layers.apply_rope(q, cos, sin), layers.apply_rope(k, cos, sin)
        out = step.cache.attend(module.layer, q, k, v, step)
    return module.o_proj(out.reshape(tokens, module.heads * module.head_dim))


class FusedTransformer(Transformer):
    """A Transformer of FusedBlocks on the modules of another; `fuse` makes it."""

    def __init__(self, model: Transformer) -> None:
        nn.Module.__init__(self)  # Transformer's own would make weights
        self.config, self.frequencies = model.config, model.frequencies
        self.embed_tokens = model.embed_tokens
        self.layers = nn.ModuleList(FusedBlock(block) for block in model.layers)
        self.norm, self.lm_head = model.norm, model.lm_head

    def run(self, hidden: torch.Tensor, step, first_layer: int = 0, last_layer: int | None = None) -> torch.Tensor:
        if self.frequencies.device != hidden.device:
            self.frequencies = self.frequencies.to(hidden.device)
        cos, sin = layers.rope_tables(self.frequencies, step.batch.positions, hidden.dtype)  # [T, D/2]
        added = None
        for block in self.layers[first_layer:last_layer]:
            hidden, added = block(hidden, added, cos, sin, step)
        return hidden if added is None else hidden + added


def fuse(model: Transformer) -> Transformer:
    """`model` through the kernels, on its own modules.

    Raises ValueError for a dtype that they do not compute in, and for what does not fit into a program's registers: a
    residual stream too wide, too many query heads on one K/V head.
    """
    if model.dtype not in DTYPES:
        raise ValueError(f"model is {model.dtype}: expected float32, float16 or bfloat16 for fused kernels")
    if model.config.hidden_size > WIDEST:
        raise ValueError(f"hidden_size is {model.config.hidden_size}: expected at most {WIDEST} for fused kernels")
    for spec, block in zip(model.kv_specs(), model.layers):
        group, most = block.self_attn.heads // spec.heads, largest_group(spec.v_dim)
        if group > most and not spec.v_in_k:  # what absorbed MLA keeps goes to other kernels
            raise ValueError(f"each K/V head of {spec.v_dim} values has {group} query heads: expected at most {most} "
                             "for fused kernels")
    return FusedTransformer(model)
