"""Latent attention in the model: against `transformers`, one form against the other, and its cache against the cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from families import SIZES

from minillm.cache.base import NoCache
from minillm.cache.build import paged_cache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.generate import cached_tokens, naive_tokens
from minillm.measure import cost
from minillm.model import config_files, mla, packing, zoo
from minillm.model.batch import make_batch
from minillm.model.config import ConfigError, RopeScaling
from minillm.model.transformer import Transformer

LATENT = dict(kv_lora_rank=20, q_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10,
              num_key_value_heads=6, first_k_dense_replace=3)
FAMILIES = {
    "v2": ("DeepseekV2", {}),
    "v2-lite": ("DeepseekV2", {"q_lora_rank": None}),  # queries in one step
    "v2-biases": ("DeepseekV2", {"attention_bias": True, "mlp_bias": True}),
    "v3": ("DeepseekV3", {"num_mtp_layers": 0}),
}
HUB = {"architectures": ["DeepseekV2ForCausalLM"], **SIZES, **LATENT}


def hub_model(family: str) -> torch.nn.Module:
    """A `transformers` model with random weights, float32, its norms and biases random too."""
    name, changes = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **LATENT, **changes}, attn_implementation="eager")
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
        elif parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def our_twin(hub: torch.nn.Module, absorbed: bool, dtype: torch.dtype = torch.float32) -> Transformer:
    data = {**hub.config.to_dict(), "architectures": [type(hub).__name__]}
    model = Transformer(replace(config_files.from_hf(data), absorbed=absorbed), dtype=dtype)
    model.load_state_dict({name.removeprefix("model."): value for name, value in hub.state_dict().items()})
    return model


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(211, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def cache_for(model: Transformer, kind: str, backend: str = "sdpa"):
    if kind == "contiguous":
        return ContiguousKVCache(model.kv_specs(), 4, 128, model.dtype, backend=backend)
    return paged_cache(model.kv_specs(), 60, 4, dtype=model.dtype, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "tiled"])
@pytest.mark.parametrize("absorbed, kind", [(True, "paged"), (True, "contiguous"), (False, "contiguous")])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers_at_odd_batch_mixes(family: str, absorbed: bool, kind: str,
                                                           backend: str) -> None:
    """Prefill, chunks and decode in one batch; float32, within 1e-5 of the largest logit."""
    hub = hub_model(family)
    model = our_twin(hub, absorbed)
    texts = [tokens(n, seed=n) for n in (1, 5, 23, 97)]
    with torch.no_grad():
        expected = [hub(torch.tensor([text])).logits[0] for text in texts]
    cache, done = cache_for(model, kind, backend), [0, 0, 0, 0]
    for step in ([1, 3, 0, 64], [0, 1, 17, 1], [0, 1, 1, 30], [0, 0, 5, 2]):
        rows = [(i, texts[i][done[i] : done[i] + n], done[i]) for i, n in enumerate(step) if n]
        logits = model(make_batch(rows, all_logits=True), cache)
        wanted = torch.cat([expected[i][start : start + len(part)] for i, part, start in rows])
        assert (logits - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        done = [d + n for d, n in zip(done, step)]
    assert done == [1, 5, 23, 97]


@pytest.mark.parametrize("family", ["v2", "v2-lite"])
def test_both_forms_are_the_same_function_in_float64(family: str) -> None:
    hub = hub_model(family)
    batch = make_batch([(0, tokens(40, 1), 0), (1, tokens(9, 2), 0)], all_logits=True)
    models = [our_twin(hub, absorbed, torch.float64) for absorbed in (True, False)]
    absorbed, expanded = (model(batch, NoCache(model.kv_specs(), "reference")) for model in models)
    assert (absorbed - expanded).abs().max() <= 1e-12 * expanded.abs().max()


def test_no_cache_expanded_and_paged_absorbed_choose_the_same_64_tokens() -> None:
    hub = hub_model("v2")
    expanded, absorbed = our_twin(hub, False, torch.float64), our_twin(hub, True, torch.float64)

    def greedy(logits: torch.Tensor) -> int:
        return int(logits.argmax())

    prompt = tokens(9, seed=3)
    naive = list(naive_tokens(expanded, NoCache(expanded.kv_specs(), "reference"), prompt, greedy, 64, ()))
    cached = list(cached_tokens(absorbed, cache_for(absorbed, "paged"), prompt, greedy, 64, ()))
    assert naive == cached and len(naive) == 64


@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_the_cache_takes_what_the_cost_says(absorbed: bool, kind: str) -> None:
    """Absorbed: the latent and one rotated key, 28 values; expanded: 6 heads of 20 and 10, 180 values."""
    model = our_twin(hub_model("v2"), absorbed)
    cache = cache_for(model, kind)
    held = cache.store if kind == "paged" else cache.stored
    places = 60 * 4 if kind == "paged" else 4 * 128
    per_token = sum(tensor.numel() * tensor.element_size() for tensor in held) / places
    assert per_token == model.config.shape().kv_bytes_per_token(4)
    assert per_token == 3 * 4 * (20 + 8 if absorbed else 6 * (12 + 8 + 10))


@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_cost_counts_the_flops_and_parameters_of_the_real_model(family: str, absorbed: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = our_twin(hub_model(family), absorbed)
    cache = ContiguousKVCache(model.kv_specs(), 2, 40, backend="reference")
    model(make_batch([(0, tokens(30, 1), 0)]), cache)
    batch = make_batch([(0, tokens(1, 2), 30), (1, tokens(7, 3), 0)])
    with FlopCounterMode(display=False) as counter:
        model(batch, cache)
    shape = model.config.shape()
    assert cost.step_cost(shape, [1, 7], [31, 7]).flops == counter.get_total_flops()
    assert cost.step_totals(shape, [1, 7], [31, 7])[0] == counter.get_total_flops()
    mlp_biases = 3 * (2 * 80 + 48) if model.config.mlp_bias else 0  # which no shape counts
    assert shape.params + mlp_biases == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_a_latent_that_is_moved_is_moved_once(kind: str) -> None:
    """`keep` moves tokens within K, and V is a part of K: moved again with V they would be lost."""
    model = our_twin(hub_model("v2"), True, torch.float64)
    text, kept = tokens(12, seed=4), [0, 1, 2, 5, 6, 9, 11]
    cache = cache_for(model, kind, "reference")
    model(make_batch([(0, text, 0)]), cache)
    held = cache.store if kind == "paged" else cache.stored

    def keys() -> torch.Tensor:
        if kind == "contiguous":
            return torch.stack([k[cache._slots[0], 0, : cache.length(0)] for k in held])
        table = cache.tables.tables[0]
        return held[0][:, table].flatten(1, 2)[:, : cache.length(0), 0]

    before = keys().clone()
    cache.keep(0, kept)
    assert torch.equal(keys(), before[:, kept])


def test_packing_leaves_the_up_projection_as_it_is() -> None:
    if not packing.supported():
        pytest.skip("this build of torch has no packed products")
    model = our_twin(hub_model("v2"), True)
    batch = make_batch([(0, tokens(9, 1), 0)])
    before = model(batch, NoCache(model.kv_specs()))
    packing.pack(model)
    assert isinstance(model.layers[0].self_attn.kv_b_proj, mla.UpProjection)
    assert isinstance(model.layers[0].self_attn.q_b_proj, packing.PackedLinear)
    torch.testing.assert_close(model(batch, NoCache(model.kv_specs())), before, atol=1e-4, rtol=1e-4)


def test_a_folder_of_the_hub_is_loaded(tmp_path) -> None:
    from checkpoints import write_folder

    hub = hub_model("v2")
    loaded = zoo.load(write_folder(tmp_path / "tiny", hub), device="cpu")
    text = tokens(20, seed=6)
    with torch.no_grad():
        expected = hub(torch.tensor([text])).logits[0]
    got = loaded.model(make_batch([(0, text, 0)], all_logits=True), cache_for(loaded.model, "paged"))
    assert loaded.config.absorbed
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_deepseek_v2s_scale_is_that_of_192_values_not_of_576() -> None:
    numbers = {**HUB, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    config = config_files.from_hf(numbers)
    absorbed, expanded = config.kv_specs()[0], replace(config, absorbed=False).kv_specs()[0]
    assert absorbed.scale == expanded.scale == 192**-0.5
    assert (absorbed.heads, absorbed.k_dim, absorbed.v_dim, absorbed.v_in_k) == (1, 576, 512, True)
    assert (expanded.heads, expanded.k_dim, expanded.v_dim, expanded.v_in_k) == (6, 192, 128, False)


@pytest.mark.parametrize("changes, words", [
    ({"first_k_dense_replace": 1}, ["first_k_dense_replace", "1", "num_hidden_layers (3)", "mixtures of experts"]),
    ({"first_k_dense_replace": None}, ["first_k_dense_replace", "mixtures of experts"]),
    ({"kv_lora_rank": None}, ["kv_lora_rank", "latent attention"]),
    ({"v_head_dim": 0}, ["v_head_dim", "0", "positive integer"]),
    ({"q_lora_rank": "x"}, ["q_lora_rank", "'x'", "positive integer"]),
    ({"qk_rope_head_dim": 7}, ["head_dim", "7", "even"]),
    ({"num_key_value_heads": 2}, ["num_kv_heads", "2", "num_heads (6)"]),
    ({"rope_scaling": {"type": "yarn", "factor": 40.0, "mscale": 0.707}}, ["yarn"]),
    ({"rope_scaling": {"type": "linear", "factor": 4.0}}, ["rope_scaling", "linear", "expected None"]),
    ({"rope_interleave": False}, ["rope_interleave", "False", "true"]),
])
def test_a_config_it_cannot_run_is_refused_by_name(changes: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        config_files.from_hf({**HUB, **changes})
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("changes, words", [
    ({"architecture": "llama"}, "unknown architecture 'llama': expected one of deepseek_v2, deepseek_v3"),
    ({"qk_norm": True}, "config qk_norm is True: expected False with latent attention"),
    ({"windows": (4, 4, 4)}, "config windows is"), ({"rope_scaling": RopeScaling("linear", 2.0)}, "rope_scaling")])
def test_what_absorption_cannot_do_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(config_files.from_hf(HUB), **changes)


def test_a_quantized_cache_refuses_a_latent() -> None:
    with pytest.raises(ValueError, match="codec is 'int8' where V is a part of K"):
        paged_cache(config_files.from_hf(HUB).kv_specs(), 8, 4, "int8")
