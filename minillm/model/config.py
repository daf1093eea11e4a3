"""The numbers of a model. A `ModelConfig` that exists is one that `Transformer` can run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from minillm.measure import shape

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


class ConfigError(ValueError):
    """A configuration that is incomplete, contradicts itself, or asks for what this model does not do."""


@dataclass(frozen=True)
class KVSpec:
    """What one layer keeps per token, and how it attends: the only thing a cache knows of the model.

    `heads` K/V heads of `k_dim` and `v_dim` values; `window` keys visible to each query, itself included (None: all);
    `scale` multiplies q·k before the softmax. `v_in_k`: V is the first v_dim values of K, and takes no room.
    """

    heads: int
    k_dim: int
    v_dim: int
    window: int | None
    scale: float
    v_in_k: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """How RoPE frequencies are stretched beyond the trained context.

    `linear` divides every frequency by `factor` (Chen et al. 2023, position interpolation). `llama3` divides only the
    slow ones and blends in between (Llama 3.1): wavelengths above `original_context / low_freq_factor` are divided,
    those below `original_context / high_freq_factor` are kept.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Every number `Transformer` needs. `config_files` reads it from a file."""

    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_divisors: tuple[float, ...] | None = None  # [head_dim/2], as a GGUF file spells llama3 scaling out
    context_length: int = 2048
    tie_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.architecture not in self.architectures:
            expected = ", ".join(self.architectures)
            raise ConfigError(f"unknown architecture {self.architecture!r}: expected one of {expected}")
        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                      "head_dim", "context_length"):
            value = getattr(self, field)
            if not is_count(value):
                raise ConfigError(f"config {field} is {value!r}: expected a positive integer")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"config num_heads is {self.num_heads}: expected a multiple of num_kv_heads "
                              f"({self.num_kv_heads})")
        if self.head_dim % 2:
            raise ConfigError(f"config head_dim is {self.head_dim}: expected an even number, RoPE rotates pairs")
        for field in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, field)
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"config {field} is {value!r}: expected a positive number")
        if self.rope_divisors is not None and len(self.rope_divisors) != self.head_dim // 2:
            raise ConfigError(f"config rope_divisors has {len(self.rope_divisors)} entries: expected head_dim/2 "
                              f"({self.head_dim // 2})")
        if self.windows is not None and len(self.windows) != self.num_layers:
            raise ConfigError(f"config windows has {len(self.windows)} entries: expected one per layer "
                              f"({self.num_layers})")
        for window in self.windows or ():
            if window is not None and not is_count(window):
                raise ConfigError(f"config sliding_window is {window!r}: expected a positive integer")
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise ConfigError(f"config eos or bos token id is {token!r}: expected a token id")
        if not isinstance(self.tie_embeddings, bool):
            raise ConfigError(f"config tie_word_embeddings is {self.tie_embeddings!r}: expected true or false")

    @property
    def scale(self) -> float:
        """What multiplies q·k: 1/√head_dim."""
        return self.head_dim**-0.5

    def window(self, layer: int) -> int | None:
        """Keys visible to each query of `layer`, itself included; None when it sees all."""
        return self.windows[layer] if self.windows is not None else None

    def kv_specs(self) -> list[KVSpec]:
        """One KVSpec a layer."""
        return [KVSpec(self.num_kv_heads, self.head_dim, self.head_dim, self.window(layer), self.scale)
                for layer in range(self.num_layers)]

    def shape(self) -> shape.ModelShape:
        """The same model as `measure` sees it."""
        window = self.windows[0] if self.windows is not None and len(set(self.windows)) == 1 else None
        return shape.ModelShape(
            name=self.name or self.architecture, layers=self.num_layers, hidden=self.hidden_size,
            heads=self.num_heads, kv_heads=self.num_kv_heads, head_dim=self.head_dim,
            intermediate=self.intermediate_size, vocab=self.vocab_size, context=self.context_length,
            tied_embeddings=self.tie_embeddings, attention_bias=self.attention_bias, qk_norm=self.qk_norm,
            window=window)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
