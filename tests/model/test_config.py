"""Configurations: what is read, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minillm.model import config_files
from minillm.model.config import ConfigError, RopeScaling

LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "eos_token_id": [2, 3], "bos_token_id": 1}
GGUF = {"general.architecture": "llama", "llama.vocab_size": 100, "llama.embedding_length": 32,
        "llama.feed_forward_length": 64, "llama.block_count": 4, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.context_length": 64, "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-6, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1}


def changed(base: dict, **changes) -> dict:
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def test_both_formats_give_the_same_numbers() -> None:
    hub, gguf = config_files.from_hf(changed(LLAMA, eos_token_id=2)), config_files.from_gguf(GGUF)
    assert replace(hub, name="") == replace(gguf, name="")
    assert hub.head_dim == 8 and hub.eos_ids == (2,) and hub.bos_id == 1
    assert config_files.from_hf(LLAMA).eos_ids == (2, 3)


def test_shape_carries_the_numbers_to_measure() -> None:
    shape = config_files.from_hf(LLAMA).shape()
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (4, 32, 4, 2, 8)
    assert shape.kv_bytes_per_token(2) == 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize("rope, expected", [
    ({"rope_scaling": None}, None),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeScaling("linear", 2.0)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, None),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 32}}, RopeScaling("llama3", 8.0, 1.0, 4.0, 32)),
])
def test_rope_scaling_is_read_in_old_and_new_spelling(rope: dict, expected: RopeScaling | None) -> None:
    assert config_files.from_hf(changed(LLAMA, **rope)).rope_scaling == expected


def test_rope_theta_is_found_in_either_place() -> None:
    assert config_files.from_hf(changed(LLAMA, rope_theta=7.0)).rope_theta == 7.0
    assert config_files.from_hf(changed(LLAMA, rope_parameters={"rope_theta": 9.0})).rope_theta == 9.0


def test_windows_follow_each_family_rules() -> None:
    assert config_files.from_hf(changed(LLAMA, sliding_window=8)).windows is None
    mistral = changed(LLAMA, architectures=["MistralForCausalLM"], sliding_window=8)
    assert config_files.from_hf(mistral).windows == (8, 8, 8, 8)
    qwen = changed(LLAMA, architectures=["Qwen2ForCausalLM"], sliding_window=8)
    assert config_files.from_hf(qwen).windows is None
    qwen = changed(qwen, use_sliding_window=True, max_window_layers=3)
    assert config_files.from_hf(qwen).windows == (None, None, None, 8)


@pytest.mark.parametrize("changes, words", [
    ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM"]),
    ({"architectures": ..., "model_type": "mamba"}, ["mamba"]),
    ({"hidden_size": ...}, ["hidden_size"]),
    ({"num_attention_heads": 3}, ["num_heads", "3", "num_kv_heads"]),
    ({"vocab_size": -4}, ["vocab_size", "-4", "positive"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["yarn", "linear", "llama3"]),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, ["dynamic"]),
    ({"rope_scaling": {"type": "linear"}}, ["factor"]),
    ({"rope_scaling": {"type": "linear", "factor": -1.0}}, ["factor", "-1"]),
    ({"rms_norm_eps": 0.0}, ["rms_norm_eps", "0.0", "positive"]),
    ({"head_dim": 7}, ["head_dim", "7", "even"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
    ({"hidden_size": "32"}, ["hidden_size", "'32'", "positive integer"]),
    ({"num_attention_heads": 0}, ["num_attention_heads", "0"]),
    ({"head_dim": 0}, ["head_dim", "0", "positive integer"]),
    ({"num_hidden_layers": True}, ["num_layers", "True"]),
    ({"rope_parameters": "abc"}, ["rope_parameters", "'abc'", "object"]),
    ({"rope_scaling": {"type": "linear", "factor": "abc"}}, ["factor", "'abc'", "positive number"]),
    ({"eos_token_id": "x"}, ["token id", "'x'"]),
    ({"eos_token_id": {"a": 1}}, ["token id"]),
    ({"tie_word_embeddings": "no"}, ["tie_word_embeddings", "'no'"]),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": "x"}, ["sliding_window", "'x'"]),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": -3}, ["sliding_window", "-3"]),
])
def test_a_hub_config_it_cannot_run_is_refused_by_name(changes: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config_files.from_hf(changed(LLAMA, **changes))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("changes, words", [
    ({"general.architecture": "gpt2"}, ["gpt2", "qwen3"]),
    ({"general.architecture": ...}, ["general.architecture"]),
    ({"llama.block_count": ...}, ["llama.block_count"]),
    ({"llama.rope.scaling.type": "yarn"}, ["yarn"]),
    ({"llama.rope.dimension_count": 4}, ["dimension_count", "4", "8"]),
    ({"llama.expert_count": 8}, ["expert_count", "8"]),
    ({"llama.vocab_size": ...}, ["vocab_size"]),
])
def test_gguf_metadata_it_cannot_run_is_refused_by_name(changes: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config_files.from_gguf(changed(GGUF, **changes))
    for word in words:
        assert word in str(error.value)


def test_a_config_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="list: expected an object"):
        config_files.from_hf([1, 2])  # type: ignore[arg-type]
