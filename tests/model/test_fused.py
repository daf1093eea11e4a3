"""The model through fused kernels: the same logits as without, the same parameters, with any cache."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from families import hub_model, our_twin
from minillm.kernels.rope_cache import rope_and_store
from tiny import tiny_model

from minillm.cache.base import NoCache
from minillm.cache.build import block_tables, paged_cache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.cache.paged import PagedKVCache
from minillm.model import config_files, fused, layers
from minillm.model.batch import make_batch
from minillm.model.config import ModelConfig
from minillm.model.transformer import Transformer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LATENT = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 211, "hidden_size": 48,
          "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 6,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "kv_lora_rank": 20,
          "q_lora_rank": 28, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
          "first_k_dense_replace": 3}


class RotatingCache(PagedKVCache):
    """A paged cache that rotates what it writes, through the kernel; `written` counts its layers' calls."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model.kv_specs(), block_tables(40, 4, "none"), model.dtype, DEVICE)
        self.written: Counter[int] = Counter()

    def rotate_and_attend(self, layer, q, k, v, cos, sin, step):
        self.written[layer] += 1
        q = rope_and_store(q, k, v, cos, sin, step.slots, *(tensor[layer] for tensor in self.store))
        keys, values = self._read(layer, step)
        return torch.cat([attend_row(*row, self.specs[layer]) for row in
                          zip(q.split(step.batch.query_lens), keys, values)])

    def attend(self, *_):
        raise AssertionError("attend was called where rotate_and_attend is there")


def attend_row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec) -> torch.Tensor:
    """q [S_q, H, D] over k, v [S, H_kv, D]: [S_q, H, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * spec.scale
    distance = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    hidden = (distance < 0) | (distance >= (spec.window or len(k)))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


CACHES = {
    "contiguous": lambda m: ContiguousKVCache(m.kv_specs(), 4, 64, m.dtype, DEVICE),
    "paged": lambda m: paged_cache(m.kv_specs(), 40, 4, dtype=m.dtype, device=DEVICE),
    "rotating": RotatingCache,
}


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(211, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def family_model(family: str, dtype: torch.dtype = torch.float32) -> Transformer:
    return our_twin(hub_model(family), dtype).to(DEVICE)


def latent_model() -> Transformer:
    model = Transformer(config_files.from_hf(LATENT), device=DEVICE, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * (1 if parameter.dim() == 1 else 0.15))
    return model


def steps(model: Transformer, cache) -> list[torch.Tensor]:
    """All logits of a prefill, of prompts and chunks with decodes, and of decodes alone."""
    texts, done = [tokens(n, seed=n) for n in (4, 6, 15)], [0, 0, 0]
    found = []
    for step in ([2, 4, 0], [1, 0, 10], [1, 1, 4], [0, 1, 1]):
        rows = [(i, texts[i][done[i] : done[i] + n], done[i]) for i, n in enumerate(step) if n]
        found.append(model(make_batch(rows, DEVICE, all_logits=True), cache))
        done = [d + n for d, n in zip(done, step)]
    assert done == [4, 6, 15]
    return found


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """float32, within 1e-5 of the largest logit."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize(("family", "kind"), [
    *((family, "rotating") for family in ("llama-mqa", "llama-biases", "llama-tied", "mistral-window", "qwen3")),
    ("llama", "contiguous"), ("qwen3", "paged")])
def test_a_family_gives_the_same_logits_step_by_step(family: str, kind: str) -> None:
    model = family_model(family)
    plain = steps(model, CACHES["paged"](model))
    cache = CACHES[kind](model)
    for ours, theirs in zip(steps(fused.fuse(model), cache), plain):
        assert_close(ours, theirs)
    if kind == "rotating":
        assert cache.written == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("make", [lambda: tiny_model(dtype=torch.float32).to(DEVICE), latent_model],
                         ids=["tiny", "latent"])
def test_the_same_logits_without_a_cache_and_with_latent_attention(make) -> None:
    model = make()
    batch = make_batch([(0, tokens(11, 1), 0), (1, [7], 0)], DEVICE, all_logits=True)
    for cache in (NoCache(model.kv_specs()), CACHES["contiguous"](model), CACHES["paged"](model)):
        assert_close(fused.fuse(model)(batch, cache), model(batch, NoCache(model.kv_specs())))


def test_half_precision_is_as_near_to_float64_as_without() -> None:
    """At most twice the plain model's error, plus 1e-3 of the largest logit."""
    batch = make_batch([(0, tokens(20, seed=5), 0)], DEVICE, all_logits=True)
    exact_model, model = family_model("qwen3", torch.float64).double(), family_model("qwen3", torch.float16).half()
    exact = exact_model(batch, NoCache(exact_model.kv_specs()))
    plain, ours = (m(batch, NoCache(m.kv_specs())) for m in (model, fused.fuse(model)))
    assert ours.dtype == torch.float16
    largest = exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-3 * largest


@pytest.mark.parametrize(("sizes", "words"), [
    ((16640, 1, 1, 64), "hidden_size is 16640: expected at most 16384"),
    ((64, 65, 1, 128), "each K/V head of 128 values has 65 query heads: expected at most 64"),
    ((64, 66, 2, 256), "each K/V head of 256 values has 33 query heads: expected at most 32")])
def test_what_a_program_cannot_hold_is_refused_before_anything_runs(sizes: tuple, words: str) -> None:
    hidden, heads, kv_heads, dim = sizes
    config = ModelConfig("llama", 8, hidden, 16, 1, heads, kv_heads, dim, context_length=8, eos_ids=(1,))
    with pytest.raises(ValueError, match=words):
        fused.fuse(Transformer(config, device="meta", dtype=torch.float32))


def test_the_largest_that_fits_is_not_refused() -> None:
    config = ModelConfig("llama", 8, 16384, 16, 1, 64, 1, 128, context_length=8, eos_ids=(1,))
    fused.fuse(Transformer(config, device="meta", dtype=torch.float32))


def test_the_kernels_run_and_not_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 layers: each adds and norms twice but the first, whose input is only normed; its MLP's middle is one call."""
    calls: Counter[str] = Counter()

    def counted(name: str):
        function = getattr(fused, name)

        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    model = fused.fuse(family_model("llama"))
    for name in ("add_rms_norm", "swiglu"):
        monkeypatch.setattr(fused, name, counted(name))
    model(make_batch([(0, [1, 2], 0)], DEVICE), NoCache(model.kv_specs()))
    assert calls == {"add_rms_norm": 5, "swiglu": 3}


def test_the_parameters_are_the_plain_model_s_under_their_names() -> None:
    for family in ("llama", "llama-tied", "qwen3"):
        model = family_model(family)
        ours = fused.fuse(model)
        assert isinstance(ours, Transformer)
        assert [name for name, _ in ours.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert all(mine is theirs for mine, theirs in zip(ours.parameters(), model.parameters()))
        assert [name for name, _ in ours.named_modules()] == [name for name, _ in model.named_modules()]
        assert (ours.device, ours.dtype, ours.kv_specs()) == (model.device, model.dtype, model.kv_specs())
    assert all(isinstance(block, layers.Block) for block in model.layers)


def test_a_projection_replaced_in_one_is_replaced_in_both() -> None:
    class Zero(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(len(x), 48)

    model = family_model("llama")
    ours = fused.fuse(model)
    batch = make_batch([(0, tokens(5, 1), 0)], DEVICE)
    before = ours(batch, NoCache(model.kv_specs()))
    for name in ("layers.1.self_attn", "layers.2.mlp"):
        setattr(ours.get_submodule(name), "o_proj" if name.endswith("attn") else "down_proj", Zero())
    after = ours(batch, NoCache(model.kv_specs()))
    assert (after - before).abs().max() > 0.1
    assert_close(after, model(batch, NoCache(model.kv_specs())))


def test_the_three_pieces_compose_to_the_whole_at_any_cut() -> None:
    model = fused.fuse(family_model("qwen3"))
    batch = make_batch([(0, tokens(11, 1), 0), (1, tokens(4, 2), 0)], DEVICE)
    whole = model(batch, NoCache(model.kv_specs()))
    for cut in range(model.config.num_layers + 1):
        with torch.inference_mode():
            step = NoCache(model.kv_specs()).begin(batch)
            hidden = model.run(model.embed(batch), step, last_layer=cut)
            hidden = model.run(hidden, step, first_layer=cut)
            assert_close(model.head(hidden, batch.logit_rows), whole)


def test_a_dtype_that_the_kernels_lack_is_refused() -> None:
    with pytest.raises(ValueError, match="model is torch.float64: expected float32, float16 or bfloat16"):
        fused.fuse(tiny_model())
