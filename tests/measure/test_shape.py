"""Shapes against published parameter counts and KV sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minillm.measure.shape import KNOWN_SHAPES, MLA_SHAPES

PUBLISHED = {  # parameters, as each model's own weights add up
    "smollm2-135m": 134_515_008,
    "qwen3-0.6b": 596_049_920,
    "llama-3.2-1b": 1_235_814_400,
    "llama-2-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
    "llama-2-13b": 13_015_864_320,
    "llama-3-70b": 70_553_706_496,
}


def test_every_shape_adds_up_to_the_published_parameters() -> None:
    assert {name: shape.params for name, shape in KNOWN_SHAPES.items()} == PUBLISHED


@pytest.mark.parametrize("name, kib", [("llama-2-7b", 512), ("llama-3-8b", 128), ("llama-3-70b", 320),
                                       ("llama-2-13b", 800)])
def test_kv_bytes_per_token_in_16_bits(name: str, kib: int) -> None:
    assert KNOWN_SHAPES[name].kv_bytes_per_token(2) == kib * 1024


@pytest.mark.parametrize("name, billions", [("deepseek-v2", 21), ("deepseek-v3", 37)])
def test_mla_shapes_add_up_to_the_published_active_parameters(name: str, billions: int) -> None:
    """A token of DeepSeek-V2 goes through 21 of 236 billion parameters, one of V3 through 37 of 671 (both papers)."""
    assert round(MLA_SHAPES[name].params / 1e9) == billions
    assert replace(MLA_SHAPES[name], absorbed=False).params == MLA_SHAPES[name].params


def test_a_latent_is_what_mla_keeps() -> None:
    """512 values and the 64 rotated ones, in each layer; expanded, 128 heads keep 128 + 64 for K and 128 for V."""
    shape = MLA_SHAPES["deepseek-v2"]
    assert shape.kv_bytes_per_token(2) == 60 * (512 + 64) * 2 == 67.5 * 1024
    assert replace(shape, absorbed=False).kv_bytes_per_token(2) == 60 * 128 * (192 + 128) * 2
