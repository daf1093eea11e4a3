"""Writes tiny models to disk: GGUF files as llama.cpp's converter lays them out, and hub folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from minillm.model.tokenizer import byte_table

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIALS, *list(byte_table())[:200], "he"]  # 204 tokens: fits the 211 of families.py
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
TOP = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}


def gguf_name(name: str) -> str:
    """The name in a GGUF file of a hub parameter without "model."."""
    if name in TOP:
        return TOP[name]
    _, layer, rest = name.split(".", 2)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[module]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K: each head's second half goes between the rows of its first."""
    out = np.empty_like(weight)
    size = weight.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = weight[head * size + i]
            out[head * size + 2 * i + 1] = weight[head * size + size // 2 + i]
    return out


def metadata_of(hub: torch.nn.Module, architecture: str) -> dict[str, Any]:
    """The keys of a GGUF file for this model, tokenizer included."""
    c, a = hub.config, architecture
    rope = c.rope_parameters
    keys: dict[str, Any] = {
        f"{a}.block_count": c.num_hidden_layers, f"{a}.context_length": c.max_position_embeddings,
        f"{a}.embedding_length": c.hidden_size, f"{a}.feed_forward_length": c.intermediate_size,
        f"{a}.attention.head_count": c.num_attention_heads, f"{a}.attention.head_count_kv": c.num_key_value_heads,
        f"{a}.attention.layer_norm_rms_epsilon": float(c.rms_norm_eps), f"{a}.vocab_size": c.vocab_size,
        f"{a}.rope.freq_base": float(rope["rope_theta"])}
    if getattr(c, "head_dim", None):
        keys[f"{a}.attention.key_length"] = c.head_dim
    if rope["rope_type"] == "linear":
        keys |= {f"{a}.rope.scaling.type": "linear", f"{a}.rope.scaling.factor": float(rope["factor"])}
    return keys | tokenizer_metadata()


def tokenizer_metadata() -> dict[str, Any]:
    """A byte-level vocabulary without all its bytes, one merge, three control tokens."""
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)),
            "tokenizer.ggml.merges": ["h e"], "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False}


def write_gguf(path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """`tensors`: name -> float32 array, or (bytes, quantization type) already quantized."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, value in tensors.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(hub: torch.nn.Module, architecture: str) -> dict[str, np.ndarray]:
    """The model's weights under GGUF names, Q and K interleaved for the architectures that need it."""
    c, out = hub.config, {}
    for name, value in hub.state_dict().items():
        name, array = name.removeprefix("model."), value.numpy()
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if architecture in ("llama", "mistral") and ".q_proj." in name:
            array = interleave(array, c.num_attention_heads)
        if architecture in ("llama", "mistral") and ".k_proj." in name:
            array = interleave(array, c.num_key_value_heads)
        out[gguf_name(name)] = array
    if c.rope_parameters["rope_type"] == "llama3":
        out["rope_freqs.weight"] = llama3_divisors(hub)
    return out


def llama3_divisors(hub: torch.nn.Module) -> np.ndarray:
    """[D/2] what llama3 scaling divides each frequency by, from the frequencies that `transformers` computed."""
    c = hub.config
    size = c.hidden_size // c.num_attention_heads
    plain = c.rope_parameters["rope_theta"] ** (-np.arange(0, size, 2) / size)
    return (plain / hub.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)


def write_hub_gguf(path: Path, hub: torch.nn.Module, architecture: str) -> Path:
    """The whole model as one float32 GGUF file."""
    return write_gguf(path, architecture, metadata_of(hub, architecture), gguf_tensors(hub, architecture))


def hub_tokenizer() -> Tokenizer:
    """The same tokenizer as `tokenizer_metadata`, put together by hand."""
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, [("h", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def write_folder(path: Path, hub: torch.nn.Module, shard: str = "1GB") -> Path:
    """A hub folder: config.json and safetensors by `save_pretrained`, and tokenizer.json."""
    hub.save_pretrained(path, max_shard_size=shard)
    hub_tokenizer().save(str(path / "tokenizer.json"))
    return path
