"""Plans: sizes a reader can check in their head, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minillm.cache.build import block_bytes
from minillm.measure.hardware import DATASHEETS
from minillm.measure.plan import kv_bits_per_value, plan
from minillm.measure.shape import KNOWN_SHAPES
from minillm.model.config import KVSpec

LLAMA = KNOWN_SHAPES["llama-2-7b"]


def test_a_7b_model_is_about_14_gb_at_16_bits_and_3_and_a_half_at_4() -> None:
    sizes = {bits: plan(LLAMA, DATASHEETS["a100"], weight_bits=bits).weight_bytes for bits in (16, 8, 4)}
    assert sizes[16] == pytest.approx(13.5e9, rel=0.01)
    assert sizes[4] == pytest.approx(3.4e9, rel=0.01)
    assert sizes[8] * 2 == sizes[16]


def test_requests_that_fit_are_the_free_memory_over_kv_of_the_context() -> None:
    found = plan(LLAMA, DATASHEETS["a10"], context=4096)
    assert found.requests_that_fit == int((24e9 * 0.9 - LLAMA.params * 2) / (512 * 1024 * 4096)) == 3
    assert plan(LLAMA, DATASHEETS["a10"], context=4096, kv_bits=8).requests_that_fit == 7


def test_pages_and_fewer_bits_fit_more_requests() -> None:
    """Llama-2-7B, 80 GB: 72e9 - 13.5e9 bytes are free; 2 GiB a request reserved whole, 128 MiB for 256 tokens."""
    found = plan(LLAMA, DATASHEETS["a100"], mean_tokens=250)
    free = DATASHEETS["a100"].memory_bytes * 0.9 - 2 * LLAMA.params
    first, *fewer = found.capacities
    assert (first.kept_as, first.contiguous, first.paged) == ("16 bits", int(free // 2**31), int(free // 2**27))
    assert first.contiguous == found.requests_that_fit and [row.kept_as for row in fewer] == [
        "int8 or fp8", "int4", "int4-kivi"]
    assert fewer[0].paged == int(free // (2**26 * (1 + 16 / 16 / 128 / 8)))
    assert plan(LLAMA, DATASHEETS["a100"], context=4096).mean_tokens == 1024
    assert [row.kept_as for row in plan(LLAMA, DATASHEETS["a100"], kv_bits=4).capacities] == ["4 bits"]


def test_bits_with_scales_are_those_of_the_cache() -> None:
    for shape in KNOWN_SHAPES.values():
        specs = [KVSpec(shape.kv_heads, shape.head_dim, shape.head_dim, None, 1.0)]
        for name, bits in kv_bits_per_value(shape).items():
            block = block_bytes(specs, 16, name.split(" ")[0], torch.bfloat16)
            assert block * shape.layers == pytest.approx(16 * shape.kv_bytes_per_token(bits / 8), rel=1e-12)


def test_what_does_not_fit_is_an_answer() -> None:
    found = plan(KNOWN_SHAPES["llama-3-70b"], DATASHEETS["a100"])
    assert (found.fits, found.requests_that_fit) == (False, 0)


def test_bounds_and_price() -> None:
    found = plan(LLAMA, DATASHEETS["h100"], context=2048, batch=8, price_per_hour=3.6)
    assert found.prefill.bound == "compute"
    assert found.decode.bound == "bandwidth"
    assert found.dollars_per_million_tokens == pytest.approx(0.001 / found.tokens_per_second * 1e6)
    assert plan(LLAMA, DATASHEETS["h100"]).dollars_per_million_tokens is None


def test_a_window_caps_what_a_request_keeps() -> None:
    mistral = KNOWN_SHAPES["mistral-7b"]
    assert (plan(mistral, DATASHEETS["a100"], context=32768).requests_that_fit
            == plan(mistral, DATASHEETS["a100"], context=4096).requests_that_fit)


def test_a_card_without_bfloat16_computes_in_float16() -> None:
    assert plan(LLAMA, DATASHEETS["t4"], weight_bits=4).compute_dtype == "float16"
    assert plan(LLAMA, DATASHEETS["l4"], weight_bits=4).compute_dtype == "bfloat16"
    assert plan(LLAMA, DATASHEETS["l4"], weight_bits=32).compute_dtype == "float32"


@given(st.integers(1, 4096), st.integers(1, 64))
def test_fewer_bits_never_make_it_slower_or_fit_less(context, batch) -> None:
    plans = [plan(LLAMA, DATASHEETS["h200"], weight_bits=b, kv_bits=b, context=context, batch=batch)
             for b in (16, 8, 4)]
    for wide, narrow in zip(plans, plans[1:]):
        assert narrow.decode.seconds <= wide.decode.seconds
        assert narrow.requests_that_fit >= wide.requests_that_fit


@pytest.mark.parametrize("arguments, words", [
    ({"weight_bits": 5}, "weight_bits is 5: expected one of 4, 8, 16, 32"), ({"kv_bits": 0}, "kv_bits is 0"),
    ({"context": 0}, "context is 0: expected a whole number, 1 to 4096, the longest"),
    ({"context": 5000}, "context is 5000"), ({"context": 1.5}, "context is 1.5: expected a whole number"),
    ({"mean_tokens": 0}, "mean_tokens is 0: expected a whole number, 1 to 4096, the context"),
    ({"mean_tokens": 4097}, "mean_tokens is 4097"), ({"mean_tokens": "9"}, "mean_tokens is '9'"),
    ({"batch": 0}, "batch is 0"), ({"batch": 1.5}, "batch is 1.5"), ({"batch": 10**20}, "batch is 1000.*1 to 1000000"),
    ({"price_per_hour": 0}, "price_per_hour is 0"), ({"price_per_hour": float("nan")}, "price_per_hour is nan"),
    ({"price_per_hour": "2"}, "price_per_hour is '2'"), ({"price_per_hour": 1e300}, "at most 1e9")])
def test_bad_plans_are_refused(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        plan(LLAMA, DATASHEETS["h100"], **arguments)


def test_planning_needs_no_torch() -> None:
    code = "import sys, minillm.measure.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
