"""A `ModelConfig` out of a hub's `config.json` or GGUF metadata.

Whatever `Transformer` cannot run (another architecture, another kind of RoPE scaling, an activation other than SiLU) is
refused here, by name, with `ConfigError`.
"""

from __future__ import annotations

import math
from typing import Any

from minillm.model import mla
from minillm.model.config import ARCHITECTURES, ConfigError, ModelConfig, RopeScaling, is_count

HUB_CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
}
ROPE_KINDS = ("default", "linear", "llama3")


def _need(data: dict[str, Any], key: str, where: str) -> Any:
    if data.get(key) is None:
        raise ConfigError(f"{where} has no {key!r}: expected it in a decoder-only transformer's configuration")
    return data[key]


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def from_hf(data: dict[str, Any], name: str = "") -> ModelConfig:
    """From the dictionary of a hub `config.json`. Raises ConfigError."""
    where = "config.json"
    if not isinstance(data, dict):
        raise ConfigError(f"{where} holds a {type(data).__name__}: expected an object")
    classes = data.get("architectures") or []
    architecture = next((HUB_CLASSES[c] for c in classes if c in HUB_CLASSES), None)
    if architecture is None and not classes and data.get("model_type") in HUB_CLASSES.values():
        architecture = data["model_type"]
    if architecture is None:
        found = ", ".join(map(str, classes)) or data.get("model_type")
        raise ConfigError(f"{where} names the architecture {found!r}: expected one of {', '.join(HUB_CLASSES)}")
    activation = data.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{where} hidden_act is {activation!r}: expected 'silu'")
    hidden = _need(data, "hidden_size", where)
    heads = _need(data, "num_attention_heads", where)
    for field, value in (("hidden_size", hidden), ("num_attention_heads", heads)):
        if not is_count(value):  # they are divided below
            raise ConfigError(f"{where} {field} is {value!r}: expected a positive integer")
    layers = _need(data, "num_hidden_layers", where)
    context = _need(data, "max_position_embeddings", where)
    # Newer configs keep rope_theta inside rope_parameters; older ones keep it at the top, beside rope_scaling.
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"{where} rope_parameters is {rope!r}: expected an object")
    theta = data.get("rope_theta") or rope.get("rope_theta") or 10000.0
    if data.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigError(f"{where} partial_rotary_factor is not 1: expected RoPE over the whole head")
    numbers = dict(
        architecture=architecture,
        vocab_size=_need(data, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_need(data, "intermediate_size", where),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=data.get("num_key_value_heads") or heads,
        head_dim=hidden // heads if data.get("head_dim") is None else data["head_dim"],
        rms_norm_eps=data.get("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=_rope_scaling(rope, context, where),
        context_length=context,
        tie_embeddings=data.get("tie_word_embeddings", False),
        # Qwen2 always has the bias on q, k and v, and never on o; its config does not say so.
        attention_bias=architecture == "qwen2" or bool(data.get("attention_bias", False)),
        output_bias=architecture != "qwen2" and bool(data.get("attention_bias", False)),
        mlp_bias=bool(data.get("mlp_bias", False)),
        qk_norm=architecture == "qwen3",
        windows=_windows(data, architecture, layers),
        eos_ids=_ids(data.get("eos_token_id")),
        bos_id=data.get("bos_token_id"),
        name=name or data.get("_name_or_path") or architecture,
    )
    return mla.config_from_hf(data, numbers) if architecture in mla.MLAConfig.architectures else ModelConfig(**numbers)


def _windows(data: dict[str, Any], architecture: str, layers: int) -> tuple[int | None, ...] | None:
    window = data.get("sliding_window")
    if architecture == "llama" or window is None:
        return None
    if architecture == "mistral":
        return (window,) * layers
    if not data.get("use_sliding_window", False):
        return None
    kinds = data.get("layer_types")
    if kinds is None:  # Qwen: the first max_window_layers see everything
        first = data.get("max_window_layers", layers)
        kinds = ["full_attention"] * min(first, layers) + ["sliding_attention"] * max(layers - first, 0)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope_number(rope: dict[str, Any], key: str, where: str) -> float:
    value = _need(rope, key, f"{where} rope_scaling")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ConfigError(f"{where} rope_scaling {key} is {value!r}: expected a positive number")
    return float(value)


def _rope_scaling(rope: dict[str, Any], context: int, where: str) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise ConfigError(f"{where} asks for RoPE scaling {kind!r}: expected one of {', '.join(ROPE_KINDS)}")
    if kind == "default":
        return None
    factor = _rope_number(rope, "factor", where)
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "llama3", factor,
        low_freq_factor=_rope_number(rope, "low_freq_factor", where),
        high_freq_factor=_rope_number(rope, "high_freq_factor", where),
        original_context=int(rope.get("original_max_position_embeddings") or context))


def from_gguf(metadata: dict[str, Any], tie_embeddings: bool = False,
              rope_divisors: tuple[float, ...] | None = None) -> ModelConfig:
    """From GGUF metadata (`general.architecture`, `llama.block_count`, …). Raises ConfigError.

    Two facts are not in the metadata but in the tensors: the embedding is tied when there is no `output.weight`, and
    llama3 RoPE scaling is spelled out as `rope_freqs.weight`, one divisor per frequency.
    """
    where = "GGUF metadata"
    architecture = _need(metadata, "general.architecture", where)
    if architecture not in ARCHITECTURES:
        raise ConfigError(f"{where} names the architecture {architecture!r}: expected one of "
                          f"{', '.join(ARCHITECTURES)}")

    def need(key: str) -> Any:
        return _need(metadata, f"{architecture}.{key}", where)

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    if get("expert_count"):
        raise ConfigError(f"{where} expert_count is {get('expert_count')}: expected a dense model, without experts")
    hidden, heads = need("embedding_length"), need("attention.head_count")
    head_dim = get("attention.key_length") or hidden // heads
    if get("rope.dimension_count", head_dim) != head_dim:
        raise ConfigError(f"{where} rope.dimension_count is {get('rope.dimension_count')}: expected the whole head "
                          f"({head_dim})")
    kind = get("rope.scaling.type", "none")
    rope = {"rope_type": "default" if kind == "none" else kind, "factor": get("rope.scaling.factor")}
    layers = need("block_count")
    window = get("attention.sliding_window")
    vocab = get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens") or ()) or None
    if vocab is None:
        raise ConfigError(f"{where} has no '{architecture}.vocab_size' and no tokens: expected one of the two")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=need("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=get("attention.head_count_kv") or heads,
        head_dim=head_dim,
        rms_norm_eps=need("attention.layer_norm_rms_epsilon"),
        rope_theta=get("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(rope, need("context_length"), where),
        rope_divisors=rope_divisors,
        context_length=need("context_length"),
        tie_embeddings=tie_embeddings,
        attention_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        windows=(window,) * layers if window and architecture == "mistral" else None,
        eos_ids=_ids(metadata.get("tokenizer.ggml.eos_token_id")),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        name=metadata.get("general.name") or architecture,
    )
