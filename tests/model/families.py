"""Tiny random models of every family, as `transformers` builds them: what parity is measured against."""

from __future__ import annotations

import torch
import transformers

from minillm.model import config_files
from minillm.model.transformer import Transformer

SIZES = dict(vocab_size=211, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "llama-tied": ("LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True}),
    "llama-mha": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 6}),
    "llama-mqa": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 1}),
    "llama-biases": ("LlamaForCausalLM", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("LlamaForCausalLM", "LlamaConfig",
                     {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-llama3": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": LLAMA3}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 7}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen2-window": ("Qwen2ForCausalLM", "Qwen2Config",
                     {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
}


def hub_model(family: str, seed: int = 0) -> torch.nn.Module:
    """A `transformers` model of the family with random weights, float32, biases and norms random too."""
    model_class, config_class, changes = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, config_class)(**{**SIZES, **changes}, attn_implementation="eager")
    model = getattr(transformers, model_class)(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers starts them at 0, which would hide a forgotten one
            torch.nn.init.normal_(parameter, std=0.5)
        elif parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def our_twin(hub: torch.nn.Module, dtype: torch.dtype = torch.float32) -> Transformer:
    """Our Transformer with the same weights."""
    data = {**hub.config.to_dict(), "architectures": [type(hub).__name__]}
    model = Transformer(config_files.from_hf(data), dtype=dtype)
    weights = {name.removeprefix("model."): value for name, value in hub.state_dict().items()}
    if hub.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    model.load_state_dict(weights)
    return model
