"""Costs against torch's own FLOP counter, against each other, and against the invariants of the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from minillm.cache.contiguous import ContiguousKVCache
from minillm.measure import cost
from minillm.measure.hardware import DATASHEETS, ridge
from minillm.measure.shape import KNOWN_SHAPES, MLA_SHAPES, ModelShape
from minillm.model.batch import make_batch
from minillm.model.config import ModelConfig
from minillm.model.transformer import Transformer

CONFIGS = {
    "tiny": ModelConfig("llama", 101, 24, 40, 2, 6, 2, 8),
    "bias": ModelConfig("qwen2", 101, 24, 40, 2, 4, 4, 6, attention_bias=True),
    "wide heads": ModelConfig("qwen3", 101, 24, 40, 3, 4, 1, 16, qk_norm=True, tie_embeddings=True),
}


def counted(config: ModelConfig, before: list[int], new: list[int], all_logits: bool) -> int:
    """FLOPs that torch counts in a real forward pass."""
    model = Transformer(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    cache = ContiguousKVCache(model.kv_specs(), len(new), max(b + n for b, n in zip(before, new)), backend="reference")
    earlier = [(i, [1] * b, 0) for i, b in enumerate(before) if b]
    if earlier:
        model(make_batch(earlier), cache)
    batch = make_batch([(i, [1] * n, b) for i, (b, n) in enumerate(zip(before, new))], all_logits=all_logits)
    with FlopCounterMode(display=False) as counter:
        model(batch, cache)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("before, new, all_logits", [
    ([0], [9], False), ([0, 7, 30], [5, 1, 3], False), ([4, 4], [1, 1], True), ([0, 0], [3, 11], True)])
def test_flops_are_those_of_the_real_forward_pass(name: str, before, new, all_logits: bool) -> None:
    config, context = CONFIGS[name], [b + n for b, n in zip(before, new)]
    rows = sum(new) if all_logits else len(new)
    counts = cost.step_cost(config.shape(), new, context, logit_rows=rows)
    assert counts.flops == counted(config, before, new, all_logits)
    if not all_logits:
        assert cost.step_totals(config.shape(), new, context)[0] == counts.flops


def test_flops_of_smollm2_are_those_of_its_real_forward_pass() -> None:
    shape = KNOWN_SHAPES["smollm2-135m"]
    config = ModelConfig("llama", 49152, 576, 1536, 30, 9, 3, 64, tie_embeddings=True)
    assert cost.step_cost(shape, [33, 1], [33, 20]).flops == counted(config, [0, 19], [33, 1], False)


lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=5)


@given(lengths, st.sampled_from(sorted(KNOWN_SHAPES | MLA_SHAPES)), st.sampled_from([0.5, 1.0, 2.0, 4.0]))
def test_the_two_totals_are_the_itemized_ones_but_for_activations_and_small_weights(rows, name, width) -> None:
    shape = (KNOWN_SHAPES | MLA_SHAPES)[name]
    new, context = [n for n, _ in rows], [n + b for n, b in rows]
    flops, moved = cost.step_totals(shape, new, context, width, width)
    items = cost.step_cost(shape, new, context, weight_bytes=width, kv_bytes=width)
    assert flops == pytest.approx(items.flops, rel=1e-12)
    small = items.parts["norms"].weight_bytes + items.parts["embedding"].weight_bytes
    assert moved == pytest.approx(items.weight_bytes + items.kv_bytes - small, rel=1e-12)


@given(lengths, st.sampled_from([None, 1, 16, 1000]))
@settings(max_examples=50)
def test_causal_counts_are_the_pairs_of_the_mask(rows, window) -> None:
    from minillm.attention.reference import causal_mask

    shape = ModelShape("m", 1, 8, 2, 1, 4, 8, 10, 1000, window=window)
    new, context = [n for n, _ in rows], [n + b for n, b in rows]
    pairs = sum(int(causal_mask(n, c, window, "cpu").sum()) for n, c in zip(new, context))
    assert cost.attention_cost(shape, new, context, causal=True).flops == 4 * pairs * shape.q_size
    assert cost.attention_cost(shape, new, context).flops == 4 * sum(n * c for n, c in zip(new, context)) * shape.q_size
    seen = sum(int(causal_mask(n, c, window, "cpu").any(0).sum()) for n, c in zip(new, context))
    assert cost.attention_cost(shape, new, context, kv_bytes=1).kv_bytes == 2 * shape.kv_size * (seen + sum(new))


def test_a_linear_layer_has_the_intensity_of_its_tokens() -> None:
    """16 bits, few tokens: about one FLOP per byte for each token in flight."""
    for tokens in (1, 4, 16):
        assert cost.linear_cost(tokens, 8192, 8192).intensity == pytest.approx(tokens, rel=0.01)


def test_decode_attention_has_the_intensity_of_its_group_whatever_the_batch() -> None:
    for name, group in (("llama-2-7b", 1), ("llama-3-8b", 4), ("llama-3-70b", 8)):
        for batch in (1, 64):
            part = cost.attention_cost(KNOWN_SHAPES[name], [1] * batch, [4096] * batch)
            assert part.intensity == pytest.approx(group, rel=0.01)


def test_decode_attention_of_absorbed_mla_does_two_products_with_each_value_it_reads() -> None:
    """DeepSeek-V2: 128 heads x (576 + 512) multiply-adds over 576 values of 2 bytes, near 242 FLOP a byte, and so near
    the ridge of an H200 (206). Expanded, each head reads K and V of its own: 1 FLOP a byte."""
    shape = MLA_SHAPES["deepseek-v2"]
    for batch in (1, 64):
        part = cost.attention_cost(shape, [1] * batch, [16384] * batch)
        assert part.flops == batch * 16384 * 128 * 2 * (576 + 512)
        assert part.kv_bytes == batch * 16385 * 1152
        assert part.flops / part.kv_bytes == pytest.approx(242, rel=0.002)
        expanded = cost.attention_cost(replace(shape, absorbed=False), [1] * batch, [16384] * batch)
        assert expanded.intensity == pytest.approx(1, rel=0.01)
        assert expanded.kv_bytes / part.kv_bytes == pytest.approx(71, rel=0.01)


def test_ridges_of_datasheets_use_dense_peaks() -> None:
    """Sheets print 1979 TFLOP/s of bf16 for an H100: that is with 2:4 sparsity, and twice the dense peak."""
    assert [round(ridge(DATASHEETS[n], "bfloat16")) for n in ("h200", "h100", "a100")] == [206, 295, 153]
    for name in ("h100", "h200"):
        assert DATASHEETS[name].peak_flops["bfloat16"] == 989e12
        assert DATASHEETS[name].peak_flops["float8"] == 1979e12


def test_single_stream_ceiling_of_llama_3_8b_on_an_h200() -> None:
    decode = cost.predict_step(KNOWN_SHAPES["llama-3-8b"], [1], [1], DATASHEETS["h200"], "bfloat16")
    assert decode.bound == "bandwidth"
    assert 300 < 1 / decode.seconds <= 320


@given(st.floats(1, 1e15), st.floats(1, 1e12), st.floats(1e9, 1e15), st.floats(1e9, 1e13))
def test_the_roofline_is_the_slower_of_the_two(flops, moved, top, bandwidth) -> None:
    seconds = cost.roofline_seconds(flops, moved, top, bandwidth)
    assert seconds >= flops / top
    assert seconds >= moved / bandwidth
    assert seconds in (flops / top, moved / bandwidth)


@pytest.mark.parametrize("new, context, words", [
    ([1], [1, 2], "1 query lengths and 2 context lengths"), ([], [], "at least one"),
    ([3], [2], "brings 3 tokens in a context of 2"), ([0], [2], "brings 0 tokens")])
def test_lengths_that_do_not_fit_are_refused(new, context, words) -> None:
    with pytest.raises(ValueError, match=words):
        cost.step_cost(KNOWN_SHAPES["llama-3-8b"], new, context)


def test_a_dtype_without_a_peak_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="NVIDIA T4 has no peak for 'bfloat16': expected one of float32, float16"):
        cost.predict(1, 1, DATASHEETS["t4"], "bfloat16")
