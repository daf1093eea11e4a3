"""Multi-head latent attention in the model (MLA, DeepSeek-V2, 2024): its numbers, and the layer.

Two forms with the same weights. Expanded, every head's K and V are made from the latent and go into the cache, as in
any other model. Absorbed, the cache holds the latent and the shared rotated key, one head whose V is a part of its K;
`attention.variants` has both as functions.

Runs what has the architecture of DeepSeek-V2 or -V3 with dense MLPs and plain RoPE. The published checkpoints are
mixtures of experts with YaRN: refused, by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from minillm.attention import variants
from minillm.measure import shape
from minillm.model import layers
from minillm.model.config import ConfigError, KVSpec, ModelConfig, is_count

LATENT_EPS = 1e-6  # of the norms of the latents, in every checkpoint: it is not in the configuration


@dataclass(frozen=True, kw_only=True)
class MLAConfig(ModelConfig):
    """A ModelConfig whose `head_dim` is the rotated part of a head (the hub's qk_rope_head_dim). The hub's names.

    `absorbed`: which of the two forms runs. `q_lora_rank` None: queries are projected in one step.
    """

    architectures: ClassVar[tuple[str, ...]] = ("deepseek_v2", "deepseek_v3")

    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    absorbed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "q_lora_rank"):
            value = getattr(self, field)
            if not is_count(value) and (field, value) != ("q_lora_rank", None):
                raise ConfigError(f"config {field} is {value!r}: expected a positive integer")
        if self.num_kv_heads != self.num_heads:
            raise ConfigError(f"config num_kv_heads is {self.num_kv_heads}: expected num_heads ({self.num_heads}), "
                              f"latent attention has no groups")
        for field, expected in (("rope_scaling", None), ("rope_divisors", None), ("windows", None), ("qk_norm", False)):
            value = getattr(self, field)
            if value != expected:
                raise ConfigError(f"config {field} is {value!r}: expected {expected} with latent attention")

    @property
    def scale(self) -> float:
        """What multiplies q·k: from the expanded key's length, in both forms."""
        return variants.mla_scale(self.qk_nope_head_dim, self.head_dim)

    def kv_specs(self) -> list[KVSpec]:
        """One KVSpec a layer, of the form that runs."""
        rank, rope = self.kv_lora_rank, self.head_dim
        if self.absorbed:
            spec = KVSpec(1, rank + rope, rank, None, self.scale, v_in_k=True)
        else:
            spec = KVSpec(self.num_heads, self.qk_nope_head_dim + rope, self.v_head_dim, None, self.scale)
        return [spec] * self.num_layers

    def shape(self) -> shape.MLAShape:
        """The same model as `measure` sees it."""
        return shape.MLAShape(
            name=self.name or self.architecture, layers=self.num_layers, hidden=self.hidden_size,
            heads=self.num_heads, kv_heads=self.num_kv_heads, head_dim=self.head_dim,
            intermediate=self.intermediate_size, vocab=self.vocab_size, context=self.context_length,
            tied_embeddings=self.tie_embeddings, attention_bias=self.attention_bias, kv_rank=self.kv_lora_rank,
            qk_nope_dim=self.qk_nope_head_dim, v_dim=self.v_head_dim, q_rank=self.q_lora_rank, absorbed=self.absorbed)


def config_from_hf(data: dict[str, Any], numbers: dict[str, Any]) -> MLAConfig:
    """From a hub `config.json` and what `config_files` has read of it. Raises ConfigError."""
    where, layer_count = "config.json", numbers["num_layers"]
    dense = data.get("first_k_dense_replace") or 0
    if is_count(layer_count) and not (isinstance(dense, int) and dense >= layer_count):
        raise ConfigError(f"{where} first_k_dense_replace is {dense!r}: expected num_hidden_layers ({layer_count}) or "
                          f"more, layers after the first {dense} are mixtures of experts")
    if not data.get("rope_interleave", True):
        raise ConfigError(f"{where} rope_interleave is {data['rope_interleave']!r}: expected true")
    latent = {}
    for field in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        if data.get(field) is None:
            raise ConfigError(f"{where} has no {field!r}: expected it in a configuration with latent attention")
        latent[field] = data[field]
    return MLAConfig(**{**numbers, "head_dim": latent.pop("qk_rope_head_dim")}, **latent,
                     q_lora_rank=data.get("q_lora_rank"))


class UpProjection(layers.Linear):
    """From the latent to every head's key and value: W_UK and W_UV in one matrix [H * (D_n + D_v), R].

    Absorbed, its two parts act on queries and answers, one head at a time, so the matrix itself is needed: it is never
    replaced by a packed or a compressed one.
    """

    def __init__(self, config: MLAConfig, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.sizes = [config.qk_nope_head_dim, config.v_head_dim]
        super().__init__(config.kv_lora_rank, config.num_heads * sum(self.sizes), False, device, dtype)

    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """w_uk [H, D_n, R] and w_uv [H, D_v, R], views."""
        by_head = self.weight.unflatten(0, (-1, sum(self.sizes)))  # [H, D_n + D_v, R]
        w_uk, w_uv = by_head.split(self.sizes, dim=1)
        return w_uk, w_uv


class MLAttention(nn.Module):
    """Project to queries and the latent; rotate the parts that carry the position; attend; project back.

    H heads, D_n = qk_nope_head_dim, D_r = qk_rope_head_dim, R = kv_lora_rank. Parameter names are the hub's.
    """

    def __init__(self, config: MLAConfig, layer: int, make_linear: layers.MakeLinear,
                 device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.layer, self.absorbed = layer, config.absorbed
        self.heads, self.rank = config.num_heads, config.kv_lora_rank
        self.q_dims = [config.qk_nope_head_dim, config.head_dim]

        def linear(name: str, n_in: int, n_out: int, bias: bool) -> nn.Module:
            return make_linear(f"layers.{layer}.self_attn.{name}", n_in, n_out, bias, device, dtype)

        hidden, q_rank, q_size = config.hidden_size, config.q_lora_rank, self.heads * sum(self.q_dims)
        self.q_proj = linear("q_proj", hidden, q_size, False) if q_rank is None else None
        self.q_a_proj = linear("q_a_proj", hidden, q_rank, config.attention_bias) if q_rank else None
        self.q_a_layernorm = layers.RMSNorm(q_rank, LATENT_EPS, device, dtype) if q_rank else None
        self.q_b_proj = linear("q_b_proj", q_rank, q_size, False) if q_rank else None
        self.kv_a_proj_with_mqa = linear("kv_a_proj_with_mqa", hidden, self.rank + config.head_dim,
                                         config.attention_bias)
        self.kv_a_layernorm = layers.RMSNorm(self.rank, LATENT_EPS, device, dtype)
        self.kv_b_proj = UpProjection(config, device, dtype)
        self.o_proj = linear("o_proj", self.heads * config.v_head_dim, hidden, config.output_bias)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step) -> torch.Tensor:
        q = self.q_proj(x) if self.q_proj is not None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_rope = q.unflatten(1, (self.heads, -1)).split(self.q_dims, dim=-1)  # [T, H, D_n], [T, H, D_r]
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.rank, self.q_dims[1]], dim=-1)  # [T, R], [T, D_r]
        latent = self.kv_a_layernorm(latent)
        q_rope = layers.apply_rope(halves(q_rope), cos, sin)
        k_rope = layers.apply_rope(halves(k_rope)[:, None], cos, sin)  # [T, 1, D_r]: one for all heads
        w_uk, w_uv = self.kv_b_proj.matrices()
        if self.absorbed:
            q, k = variants.absorb(q_nope, q_rope, w_uk), torch.cat([latent[:, None], k_rope], dim=-1)  # [.., R + D_r]
            out = step.cache.attend(self.layer, q, k, k[..., : self.rank], step)  # [T, H, R]
            out = variants.values_from_latent(out, w_uv)
        else:
            k, v = variants.expand_latent(latent, k_rope[:, 0], w_uk, w_uv)  # [T, H, D_n + D_r], [T, H, D_v]
            out = step.cache.attend(self.layer, torch.cat([q_nope, q_rope], dim=-1), k, v, step)
        return self.o_proj(out.flatten(1))  # [T, H, D_v] -> [T, hidden]


def halves(x: torch.Tensor) -> torch.Tensor:
    """Neighbouring pairs (x0 y0 x1 y1 …), as these checkpoints rotate them, half a head apart (x0 x1 … y0 y1 …).

    Done to queries and keys alike, it leaves their products as they are.
    """
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
