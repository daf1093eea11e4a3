"""Shapes against published parameter counts and KV sizes."""

from __future__ import annotations

import pytest

from minillm.measure.shape import KNOWN_SHAPES

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
