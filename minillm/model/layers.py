"""The layers of a decoder block: RMSNorm, rotary positions, attention, the gated MLP.

T is the tokens of the whole ragged batch; a layer never sees where one sequence ends and the next begins: only the
cache does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import linear, silu

from minillm.model.config import ModelConfig

MakeLinear = Callable[..., nn.Module]
"""make_linear(name, in_features, out_features, bias, device, dtype) -> a module mapping [T, in] to [T, out]."""


class Linear(nn.Module):
    """y = x·Wᵀ + b, with W [out, in]. torch's own, without its random initialisation: weights are always loaded."""

    def __init__(self, in_features: int, out_features: int, bias: bool, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype),
                                   requires_grad=False)
        self.bias = (nn.Parameter(torch.empty(out_features, device=device, dtype=dtype), requires_grad=False)
                     if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)  # [T, in] -> [T, out]


def plain_linear(name: str, in_features: int, out_features: int, bias: bool,
                 device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Module:
    """The make_linear of an uncompressed model on one device."""
    return Linear(in_features, out_features, bias, device, dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension, the mean in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()  # halves overflow when squared
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """[head_dim/2] float64 radians per position of each pair of a head's values (Su et al. 2021), scaled if asked."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequencies = config.rope_theta ** (-pairs / config.head_dim)  # [D/2]
    if config.rope_divisors is not None:
        return frequencies / torch.tensor(config.rope_divisors, dtype=torch.float64)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    # llama3: 0 for wavelengths longer than original/low (divided), 1 for those shorter than original/high (kept)
    turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns within the trained context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0, 1)
    return frequencies * (blend + (1 - blend) / scaling.factor)


def rope_tables(frequencies: torch.Tensor, positions: torch.Tensor,
                dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [T, D/2], of every position's angles, computed in float32 or wider."""
    angles = positions[:, None].to(frequencies.dtype) * frequencies  # [T, D/2]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head's pairs (x_i, x_{i+D/2}) by its token's angle: x [T, H, D], cos and sin [T, D/2] -> [T, H, D].

    The pairs are half a head apart (the hub's convention), not neighbours (the paper's, and GGUF's for Llama).
    """
    cos, sin = cos[:, None, :], sin[:, None, :]  # [T, 1, D/2], the same for every head
    first, second = x.chunk(2, dim=-1)  # [T, H, D/2] each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Project to q, k, v; rotate; attend through the cache; project back."""

    def __init__(self, config: ModelConfig, layer: int, make_linear: MakeLinear, device: torch.device | str | None,
                 dtype: torch.dtype | None) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        hidden, prefix = config.hidden_size, f"layers.{layer}.self_attn."
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = make_linear(prefix + "q_proj", hidden, q_size, config.attention_bias, device, dtype)
        self.k_proj = make_linear(prefix + "k_proj", hidden, kv_size, config.attention_bias, device, dtype)
        self.v_proj = make_linear(prefix + "v_proj", hidden, kv_size, config.attention_bias, device, dtype)
        self.o_proj = make_linear(prefix + "o_proj", q_size, hidden, config.output_bias, device, dtype)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, device, dtype) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, device, dtype) if config.qk_norm else None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step) -> torch.Tensor:
        tokens = x.shape[0]
        q = self.q_proj(x).view(tokens, self.heads, self.head_dim)  # [T, H, D]
        k = self.k_proj(x).view(tokens, self.kv_heads, self.head_dim)  # [T, H_kv, D]
        v = self.v_proj(x).view(tokens, self.kv_heads, self.head_dim)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        out = step.cache.attend(self.layer, q, k, v, step)  # [T, H, D]
        return self.o_proj(out.reshape(tokens, self.heads * self.head_dim))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, layer: int, make_linear: MakeLinear, device: torch.device | str | None,
                 dtype: torch.dtype | None) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        prefix = f"layers.{layer}.mlp."
        self.gate_proj = make_linear(prefix + "gate_proj", hidden, inner, bias, device, dtype)
        self.up_proj = make_linear(prefix + "up_proj", hidden, inner, bias, device, dtype)
        self.down_proj = make_linear(prefix + "down_proj", inner, hidden, bias, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One decoder layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int, attention: Callable[..., nn.Module], make_linear: MakeLinear,
                 device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.self_attn = attention(config, layer, make_linear, device, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.mlp = MLP(config, layer, make_linear, device, dtype)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, step)
        return x + self.mlp(self.post_attention_layernorm(x))
