"""A tiny random model with a tokenizer of single bytes: fast, exact, and able to make any text."""

from __future__ import annotations

from pathlib import Path

import torch

from minillm.llm import LLM
from minillm.model.config import ModelConfig
from minillm.model.transformer import Transformer
from minillm.model.zoo import LoadedModel

END = 256


class ByteTokenizer:
    """Token i is the byte i; token 256 ends a text. Half a UTF-8 character is an everyday thing here."""

    eos_ids = (END,)
    bos_id = None

    def encode(self, text: str, specials: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids, skip_special: bool = True) -> str:
        return bytes(i for i in ids if i < END).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < END else b""

    def is_special(self, token_id: int) -> bool:
        return token_id == END

    def render_chat(self, messages, add_generation_prompt: bool = True) -> str:
        return "".join(f"{m['role']}:{m['content']}\n" for m in messages) + "assistant:"


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
    config = ModelConfig("llama", 257, 32, 48, 2, 4, 2, 8, context_length=96, eos_ids=(END,), tie_embeddings=True)
    model = Transformer(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        else:
            parameter.data.normal_(std=0.2, generator=generator)
    return model


def tiny_llm(seed: int = 0, **options) -> LLM:
    model = tiny_model(seed)
    return LLM(LoadedModel(model, ByteTokenizer(), model.config, "tiny", Path("tiny")), **options)
