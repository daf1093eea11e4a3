"""The numbers of a model that decide what a step costs: no weights, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with a gated MLP, by its sizes alone.

    `window`: keys each query sees at most, None for all. `context`: the longest sequence it was made for.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    window: int | None = None

    @property
    def q_size(self) -> int:
        """Values of all query heads of one token."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Values of K (or of V) of one token in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def linear_params(self) -> int:
        """Weights of the projections inside the layers: each is multiplied once per token. Head not included."""
        attention = self.hidden * (2 * self.q_size + 2 * self.kv_size)  # q and o, k and v
        mlp = 3 * self.hidden * self.intermediate  # gate, up, down
        return self.layers * (attention + mlp)

    @property
    def head_params(self) -> int:
        """Weights of the matrix that turns the last hidden state into logits."""
        return self.vocab * self.hidden

    @property
    def small_params(self) -> int:
        """Norm weights and biases: read each step, too few to matter."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        biases = self.q_size + 2 * self.kv_size if self.attention_bias else 0
        return self.layers * (norms + biases) + self.hidden

    @property
    def params(self) -> int:
        """All parameters, a tied embedding counted once."""
        tables = 1 if self.tied_embeddings else 2
        return self.linear_params + self.small_params + tables * self.head_params

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float:
        """Bytes of K and V that one token leaves behind, in all layers together.

        `bytes_per_value`: of each number in them, 2 for float16, 0.5 for 4 bits.
        """
        per_layer = 2 * self.kv_size  # K and V
        values = self.layers * per_layer
        return values * bytes_per_value


def _shapes(*shapes: ModelShape) -> dict[str, ModelShape]:
    return {shape.name: shape for shape in shapes}


KNOWN_SHAPES = _shapes(
    # name, layers, hidden, heads, kv heads, head dim, intermediate, vocab, context; from each model's config.json
    ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True),
    ModelShape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 40960, tied_embeddings=True, qk_norm=True),
    ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, tied_embeddings=True),
    ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096),
    ModelShape("mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, window=4096),
    ModelShape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 32768, attention_bias=True),
    ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192),
    ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, qk_norm=True),
    ModelShape("llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000, 4096),
    ModelShape("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, 8192),
)
