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
    def qkv_matrices(self) -> list[tuple[int, int, int]]:
        """The matrices of one layer that make q, k and v: (how many of them, inputs, outputs)."""
        return [(1, self.hidden, self.q_size), (2, self.hidden, self.kv_size)]

    @property
    def output_matrices(self) -> list[tuple[int, int, int]]:
        """The matrices of one layer between attention and the residual stream."""
        return [(1, self.q_size, self.hidden)]

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


@dataclass(frozen=True, kw_only=True)
class MLAShape(ModelShape):
    """A model with multi-head latent attention (MLA, DeepSeek-V2, 2024): K and V of a token are one short latent.

    `head_dim` is the rotated part of a head's key, of which a token has one for all heads; `qk_nope_dim` the rest of
    the key, `v_dim` the value, both made from `kv_rank` latent values; `q_rank` those that the query is made from, None
    without. `absorbed`: heads attend to the latent itself, which is all that is kept; otherwise each head's K and V are
    made from it and kept.

    The MLP is counted as a dense one. For a mixture of experts `intermediate` is the width that one token goes through:
    FLOPs per token are right then, while parameters and bytes of weights are those of the active experts alone.
    """

    kv_rank: int
    qk_nope_dim: int
    v_dim: int
    q_rank: int | None = None
    absorbed: bool = True

    @property
    def k_dim(self) -> int:
        """Values that a query head multiplies with each key."""
        return self.head_dim + (self.kv_rank if self.absorbed else self.qk_nope_dim)

    @property
    def q_size(self) -> float:
        """Values of all query heads of one token, and of what attention returns: the mean of the two."""
        return self.heads * (self.k_dim + (self.kv_rank if self.absorbed else self.v_dim)) / 2

    @property
    def kv_size(self) -> float:
        """Half the values kept of one token in one layer. Absorbed, V is a part of K and takes no room."""
        return self.k_dim / 2 if self.absorbed else self.heads * (self.k_dim + self.v_dim) / 2

    @property
    def qkv_matrices(self) -> list[tuple[int, int, int]]:
        """As above. Absorbed, each head's query goes through that head's part of the K up-projection."""
        q_out = self.heads * (self.qk_nope_dim + self.head_dim)
        made = [(1, self.hidden, self.kv_rank + self.head_dim)]
        made += ([(1, self.hidden, q_out)] if self.q_rank is None else
                 [(1, self.hidden, self.q_rank), (1, self.q_rank, q_out)])
        if self.absorbed:
            return [*made, (self.heads, self.qk_nope_dim, self.kv_rank)]
        return [*made, (1, self.kv_rank, self.heads * (self.qk_nope_dim + self.v_dim))]

    @property
    def output_matrices(self) -> list[tuple[int, int, int]]:
        """As above. Absorbed, each head's latent answer goes through that head's part of the V up-projection."""
        up = [(self.heads, self.kv_rank, self.v_dim)] if self.absorbed else []
        return [*up, (1, self.heads * self.v_dim, self.hidden)]

    @property
    def linear_params(self) -> int:
        """As above; the two forms have the same weights."""
        attention = sum(count * n_in * n_out for count, n_in, n_out in [*self.qkv_matrices, *self.output_matrices])
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def small_params(self) -> int:
        """As above: the latents have norms of their own."""
        biases = (self.q_rank or 0) + self.kv_rank + self.head_dim + self.hidden if self.attention_bias else 0
        return self.layers * (2 * self.hidden + self.kv_rank + (self.q_rank or 0) + biases) + self.hidden


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

_DEEPSEEK = {"kv_rank": 512, "qk_nope_dim": 128, "v_dim": 128}
MLA_SHAPES = _shapes(
    # as above, head dim being the rotated part; intermediate = (routed + shared experts of a token) x their width
    MLAShape("deepseek-v2-lite", 27, 2048, 16, 16, 64, (6 + 2) * 1408, 102400, 163840, **_DEEPSEEK),
    MLAShape("deepseek-v2", 60, 5120, 128, 128, 64, (6 + 2) * 1536, 102400, 163840, q_rank=1536, **_DEEPSEEK),
    MLAShape("deepseek-v3", 61, 7168, 128, 128, 64, (8 + 1) * 2048, 129280, 163840, q_rank=1536, **_DEEPSEEK),
)
