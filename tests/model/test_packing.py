"""Packed weights against plain ones: the same products, the same logits, and refusals of what cannot be packed."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, hub_model, our_twin
from tiny import ByteTokenizer, tiny_model

from minillm import llm
from minillm.cache.base import NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.decoding.sampling import SamplingParams
from minillm.model import layers, packing, zoo
from minillm.model.batch import make_batch

pytestmark = pytest.mark.skipif(not packing.supported(), reason="this torch has no packed products")


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Within `tolerance` of the largest value."""
    return (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def packed_twin(model: torch.nn.Module) -> torch.nn.Module:
    twin = copy.deepcopy(model)
    packing.pack(twin)
    return twin


def plain_linears(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, layers.Linear)]


@pytest.mark.parametrize("rows", [1, 2, 7, 64, 300])
@pytest.mark.parametrize(("out_size", "in_size"), [(1, 1), (33, 17), (192, 576), (64, 8)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_plain_one(rows: int, out_size: int, in_size: int, bias: bool) -> None:
    weight, x = random(out_size, in_size, seed=1), random(rows, in_size, seed=2)
    b = random(out_size, seed=3) if bias else None
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if b is None else b.double())
    got = packing.PackedLinear(weight, b)(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_no_rows_give_no_rows(bias: bool) -> None:
    packed = packing.PackedLinear(random(33, 17, seed=1), random(33, seed=2) if bias else None)
    assert packed(torch.empty(0, 17)).shape == (0, 33)


def test_rows_apart_in_memory_are_read_where_they_are() -> None:
    weight, wide = random(33, 17, seed=1), random(5, 34, seed=2)
    for x in (wide[:, ::2], wide[:, :17], wide.T.contiguous().T[:, 17:]):
        torch.testing.assert_close(packing.PackedLinear(weight)(x), x @ weight.T, atol=1e-5, rtol=1e-5)


def test_the_weight_comes_back_out_of_its_tiles_and_is_a_copy() -> None:
    weight = random(33, 17, seed=1)
    packed, before = packing.PackedLinear(weight), weight.clone()
    weight.zero_()
    assert torch.equal(packed.weight, before)
    packed.weight.zero_()
    assert torch.equal(packed.weight, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_gives_the_same_logits_at_odd_batch_mixes(family: str) -> None:
    """Tied and untied heads, with biases and without; whole prompts, chunks and single tokens in one batch."""
    model = our_twin(hub_model(family))
    packed = packed_twin(model)
    assert plain_linears(model) and not plain_linears(packed)
    assert isinstance(packed.lm_head, packing.PackedLinear)
    texts = [random(n, seed=n).mul(50).long().abs().tolist() for n in (1, 5, 23, 97)]
    caches = [ContiguousKVCache(m.kv_specs(), max_seqs=4, max_len=128) for m in (model, packed)]
    done = [0, 0, 0, 0]
    for step in ([1, 3, 0, 64], [0, 1, 17, 1], [0, 1, 1, 30]):
        batch = make_batch([(i, texts[i][done[i] : done[i] + n], done[i]) for i, n in enumerate(step) if n],
                           all_logits=True)
        expected, got = (m(batch, cache) for m, cache in zip((model, packed), caches))
        assert close(got, expected)
        done = [d + n for d, n in zip(done, step)]


@pytest.mark.parametrize("family", ["llama", "llama-tied"])
def test_a_step_may_want_no_logits(family: str) -> None:
    model = packed_twin(our_twin(hub_model(family)))
    batch = make_batch([(0, [1, 2, 3], 0)])
    batch.logit_rows = []
    assert model(batch, NoCache(model.kv_specs())).shape == (0, 211)


def test_packing_twice_changes_nothing() -> None:
    model = packed_twin(tiny_model(dtype=torch.float32))
    before = list(model.modules())
    packing.pack(model)
    assert all(a is b for a, b in zip(before, model.modules(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_are_refused_and_left_alone_where_packing_is_optional(dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype)
    before = list(model.modules())
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=f"model is {name} on cpu: expected float32 on cpu"):
        packing.pack(model)
    with pytest.raises(ValueError, match=f"weight is {name} on cpu: expected float32 on cpu"):
        packing.PackedLinear(torch.ones(2, 2, dtype=dtype))
    packing.pack_where_faster(model)
    assert list(model.modules()) == before


def test_a_projection_of_another_dtype_is_refused_by_name_before_anything_changes() -> None:
    model = tiny_model(dtype=torch.float32)
    model.layers[1].mlp.down_proj.double()
    before = list(model.modules())
    with pytest.raises(ValueError, match="down_proj is float64 on cpu"):
        packing.pack(model)
    assert list(model.modules()) == before


def test_other_devices_are_refused_and_left_alone_where_packing_is_optional() -> None:
    model = tiny_model(dtype=torch.float32).to("meta")
    with pytest.raises(ValueError, match="model is float32 on meta: expected float32 on cpu"):
        packing.pack(model)
    packing.pack_where_faster(model)
    assert plain_linears(model)


def test_without_the_operators_packing_is_refused_and_optional_packing_does_nothing(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = tiny_model(dtype=torch.float32)
    assert not packing.supported()
    with pytest.raises(ValueError, match="without oneDNN's packed products: expected a build with them"):
        packing.pack(model)
    packing.pack_where_faster(model)
    assert plain_linears(model)


def tiny_loaded(dtype: torch.dtype = torch.float32) -> zoo.LoadedModel:
    model = tiny_model(dtype=dtype)
    return zoo.LoadedModel(model, ByteTokenizer(), model.config, "tiny", Path("tiny"))


def test_llm_packs_what_it_loads_itself_and_nothing_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tiny_loaded()
    plain = llm.LLM(given)
    assert plain.model is given.model and plain_linears(given.model)
    loaded = tiny_loaded()
    monkeypatch.setattr(zoo, "load", lambda *args, **options: loaded)
    packed = llm.LLM("tiny", device="cpu")
    assert not plain_linears(packed.model)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    ours, theirs = packed.generate("some words", greedy), plain.generate("some words", greedy)
    assert ours[0].outputs[0].token_ids == theirs[0].outputs[0].token_ids
    loaded = tiny_loaded(torch.bfloat16)
    assert plain_linears(llm.LLM("tiny", device="cpu").model)


def test_the_real_model_packed_gives_the_same_logits(smollm2: zoo.LoadedModel) -> None:
    """A prompt, a chunk behind it and one token; float32, within 1e-5 of the largest logit."""
    model = copy.deepcopy(smollm2.model)
    ids = [1, *range(1000, 1063)]
    batches = [make_batch([(0, ids[:40], 0)], all_logits=True), make_batch([(0, ids[40:63], 40)], all_logits=True),
               make_batch([(0, ids[63:], 63)])]

    def logits() -> torch.Tensor:
        cache = ContiguousKVCache(model.kv_specs(), 1, 64)
        return torch.cat([model(batch, cache) for batch in batches])

    plain = logits()
    packing.pack(model)
    assert close(logits(), plain)


MEASURE = """
import sys
def peak():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
from minillm.model import packing, zoo
model = zoo.load(sys.argv[1], device="cpu").model
weights = sum(p.numel() * p.element_size() for p in model.parameters())
before = peak()
packing.pack(model)
print(before, peak(), weights, model.embed_tokens.weight.numel() * 4)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_the_plain_weights_are_freed_as_they_are_packed(smollm2: zoo.LoadedModel) -> None:
    """The peak grows by the tied head's own weights, and by less than a fifth of the rest."""
    command = [sys.executable, "-c", MEASURE, str(smollm2.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after, weights, head = map(int, done.stdout.split())
    assert after - before < head + 0.2 * (weights - head)
