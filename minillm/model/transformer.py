"""One Transformer for Llama, Mistral, Qwen and DeepSeek-style models, in three pieces: embed, run, head.

The model does not know how K and V are kept: each layer hands them to `step.cache.attend`. Pipeline stages, layer
skipping and feature-level drafts use the pieces; everybody else calls the model on a batch and a cache.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import embedding, linear

from minillm.model import layers, mla
from minillm.model.batch import Batch
from minillm.model.config import KVSpec, ModelConfig


class Embedding(nn.Module):
    """A table of one vector per token id, [V, hidden]."""

    def __init__(self, vocab: int, hidden: int, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, hidden, device=device, dtype=dtype), requires_grad=False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embedding(token_ids, self.weight)


class Transformer(nn.Module):
    """A decoder-only transformer with weights still to be filled in (`zoo.load` does).

    Parameter names are the hub's without "model.". `make_linear(name, in, out, bias, device, dtype)` builds every
    projection, so that a compressed or sharded model is this same class.
    """

    def __init__(self, config: ModelConfig, make_linear: layers.MakeLinear | None = None,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        make_linear = make_linear or layers.plain_linear
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, device, dtype)
        attention = mla.MLAttention if isinstance(config, mla.MLAConfig) else layers.Attention
        self.layers = nn.ModuleList(layers.Block(config, layer, attention, make_linear, device, dtype)
                                    for layer in range(config.num_layers))
        self.norm = layers.RMSNorm(config.hidden_size, config.rms_norm_eps, device, dtype)
        self.lm_head = (None if config.tie_embeddings else
                        make_linear("lm_head", config.hidden_size, config.vocab_size, False, device, dtype))
        self.frequencies = layers.rope_frequencies(config)  # [D/2] float64, moved to the device when first used

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the residual stream."""
        return self.embed_tokens.weight.dtype

    def kv_specs(self) -> list[KVSpec]:
        """What a cache allocates from: one KVSpec a layer."""
        return self.config.kv_specs()

    def embed(self, batch: Batch) -> torch.Tensor:
        """[T, hidden], the residual stream before the first layer."""
        return self.embed_tokens(batch.token_ids)

    def run(self, hidden: torch.Tensor, step, first_layer: int = 0, last_layer: int | None = None) -> torch.Tensor:
        """[T, hidden] through layers first_layer … last_layer - 1 (default: to the end)."""
        if self.frequencies.device != hidden.device:
            self.frequencies = self.frequencies.to(hidden.device)
        cos, sin = layers.rope_tables(self.frequencies, step.batch.positions, hidden.dtype)  # [T, D/2]
        for block in self.layers[first_layer:last_layer]:
            hidden = block(hidden, cos, sin, step)
        return hidden

    def head(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Logits [R, V] of the chosen tokens: only these rows meet the vocabulary's matrix."""
        if rows != list(range(hidden.shape[0])):
            hidden = hidden[rows]  # [R, hidden]
        hidden = self.norm(hidden)
        if self.lm_head is None:
            return linear(hidden, self.embed_tokens.weight)
        return self.lm_head(hidden)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache) -> torch.Tensor:
        """Logits [R, V] of the batch's logit_rows; K and V of its tokens are in `cache` afterwards."""
        step = cache.begin(batch)
        return self.head(self.run(self.embed(batch), step), batch.logit_rows)
