"""The model against `transformers`, against itself by other routes, and its pieces against the whole."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, hub_model, our_twin

from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.model.batch import make_batch
from minillm.model.config import ModelConfig, RopeScaling
from minillm.model.layers import apply_rope, rope_frequencies, rope_tables
from minillm.model.transformer import Transformer


def random_tokens(count: int, seed: int, vocab: int = 211) -> list[int]:
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Within `tolerance` of the largest logit."""
    return (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers_at_odd_batch_mixes(family: str, backend: str) -> None:
    """Whole prompts, chunks and single tokens in one batch; float32, within 1e-5 of the largest logit."""
    hub = hub_model(family)
    model = our_twin(hub)
    texts = [random_tokens(n, seed=n) for n in (1, 5, 23, 97)]
    with torch.no_grad():
        expected = [hub(torch.tensor([text])).logits[0] for text in texts]
    cache = ContiguousKVCache(model.kv_specs(), max_seqs=4, max_len=128, backend=backend)
    done = [0, 0, 0, 0]
    # a step: how many tokens each sequence brings (0: it sits this one out)
    for step in ([1, 3, 0, 64], [0, 1, 17, 1], [0, 1, 1, 30], [0, 0, 5, 2]):
        rows = [(i, texts[i][done[i] : done[i] + n], done[i]) for i, n in enumerate(step) if n]
        logits = model(make_batch(rows, all_logits=True), cache)
        wanted = torch.cat([expected[i][start : start + len(tokens)] for i, tokens, start in rows])
        assert close(logits, wanted)
        done = [d + n for d, n in zip(done, step)]
    assert done == [1, 5, 23, 97]


@pytest.mark.parametrize("family", ["llama", "mistral-window", "qwen2", "qwen3"])
def test_no_cache_and_cache_choose_the_same_64_tokens(family: str) -> None:
    """Greedy in float64: recomputing everything and caching are the same function, token for token."""
    model = our_twin(hub_model(family), torch.float64).double()
    cache = ContiguousKVCache(model.kv_specs(), 1, 80, torch.float64)
    naive = cached = random_tokens(9, seed=3)
    start = 0
    for _ in range(64):
        logits = model(make_batch([(0, naive, 0)]), NoCache(model.kv_specs(), "reference"))
        naive = [*naive, int(logits[0].argmax())]
        logits = model(make_batch([(0, cached[start:], start)]), cache)
        start = len(cached)
        cached = [*cached, int(logits[0].argmax())]
    assert naive == cached


def test_logits_come_only_for_the_rows_asked_in_the_order_asked() -> None:
    model = our_twin(hub_model("llama"))
    batch = make_batch([(0, [1, 2, 3], 0), (1, [4, 5], 0)], all_logits=True)
    every = model(batch, NoCache(model.kv_specs()))
    assert every.shape == (5, 211)
    last = model(make_batch([(0, [1, 2, 3], 0), (1, [4, 5], 0)]), NoCache(model.kv_specs()))
    torch.testing.assert_close(last, every[[2, 4]], atol=1e-5, rtol=1e-5)
    batch.logit_rows = [4, 3, 2, 1, 0]
    torch.testing.assert_close(model(batch, NoCache(model.kv_specs())), every.flip(0), atol=1e-5, rtol=1e-5)


def test_the_three_pieces_compose_to_the_whole_at_any_cut() -> None:
    model = our_twin(hub_model("qwen3"))
    batch = make_batch([(0, random_tokens(11, 1), 0), (1, random_tokens(4, 2), 0)])
    whole = model(batch, NoCache(model.kv_specs()))
    for cut in range(model.config.num_layers + 1):
        with torch.inference_mode():
            step = NoCache(model.kv_specs()).begin(batch)
            hidden = model.run(model.embed(batch), step, last_layer=cut)
            hidden = model.run(hidden, step, first_layer=cut)
            assert torch.equal(model.head(hidden, batch.logit_rows), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_within_its_rounding(dtype: torch.dtype) -> None:
    """Error against float64 at most 4 rounding steps per layer of the dtype, of the largest logit."""
    hub = hub_model("llama")
    tokens = random_tokens(40, seed=5)
    exact_model = our_twin(hub, torch.float64).double()
    exact = exact_model(make_batch([(0, tokens, 0)], all_logits=True), NoCache(exact_model.kv_specs()))
    model = our_twin(hub, dtype).to(dtype)
    got = model(make_batch([(0, tokens, 0)], all_logits=True), NoCache(model.kv_specs()))
    assert got.dtype == dtype
    assert close(got.double(), exact, tolerance=12 * torch.finfo(dtype).eps)


def test_make_linear_builds_every_projection_and_is_told_which() -> None:
    names = []

    def make_linear(name, in_features, out_features, bias, device, dtype):
        names.append((name, in_features, out_features, bias))
        return torch.nn.Linear(in_features, out_features, bias, device, dtype)

    config = our_twin(hub_model("qwen2")).config
    Transformer(config, make_linear)
    assert len(names) == 3 * 7 + 1
    assert ("layers.2.self_attn.k_proj", 48, 16, True) in names
    assert ("layers.0.self_attn.o_proj", 48, 48, False) in names
    assert ("layers.1.mlp.down_proj", 80, 48, False) in names
    assert names[-1] == ("lm_head", 48, 211, False)


def test_rope_leaves_lengths_alone_and_depends_on_distance_only() -> None:
    """|R_m x| = |x| and (R_m q)·(R_n k) depends on m - n: the two facts that define it (Su et al. 2021)."""
    config = our_twin(hub_model("llama")).config
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, config.head_dim, dtype=torch.float64, generator=generator)

    def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
        return apply_rope(x, *rope_tables(rope_frequencies(config), torch.tensor([position]), torch.float64))

    torch.testing.assert_close(rotated(q, 77).norm(dim=-1), q.norm(dim=-1))
    assert torch.equal(rotated(q, 0), q)
    near = (rotated(q, 9) * rotated(k, 4)).sum(-1)
    far = (rotated(q, 309) * rotated(k, 304)).sum(-1)
    torch.testing.assert_close(near, far)
    assert not torch.allclose(near, (rotated(q, 9) * rotated(k, 5)).sum(-1))


def test_rope_divisors_stand_in_for_llama3_scaling() -> None:
    """A GGUF file spells llama3 scaling out as one divisor per frequency; both forms are the same table."""
    config = our_twin(hub_model("llama")).config
    scaled = ModelConfig(**{**config.__dict__, "rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)})
    divisors = rope_frequencies(config) / rope_frequencies(scaled)
    spelled = ModelConfig(**{**config.__dict__, "rope_divisors": tuple(divisors.tolist())})
    torch.testing.assert_close(rope_frequencies(spelled), rope_frequencies(scaled), rtol=1e-12, atol=0)
    assert divisors.min() == 1 and divisors.max() == 8
