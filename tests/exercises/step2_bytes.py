"""The check of 2.1. A reader runs it with: minillm check 2.1"""

from __future__ import annotations

from collections.abc import Callable

from minillm.course.checks import Case, Check, Mistake
from minillm.measure.shape import ModelShape


def bytes_cases() -> list[Case]:
    def case(about: str, layers: int, heads: int, kv_heads: int, head_dim: int, bytes_per_value: float) -> Case:
        args = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
                "bytes_per_value": bytes_per_value}
        return Case(about, args)

    return [
        case("one layer, one head of 4 values", 1, 1, 1, 4, 2.0),
        case("three layers", 3, 1, 1, 4, 2.0),
        case("six query heads share two K/V heads", 3, 6, 2, 4, 2.0),
        case("four bits a value: half a byte", 3, 6, 2, 4, 0.5),
        case("float32", 5, 4, 4, 8, 4.0),
    ]


def bytes_of(cls: type, layers: int, heads: int, kv_heads: int, head_dim: int, bytes_per_value: float) -> float:
    """What kv_bytes_per_token of a shape of these sizes gives; hidden is no multiple of the heads."""
    shape = cls("tiny", layers, 50, heads, kv_heads, head_dim, 30, 99, 64)
    return shape.kv_bytes_per_token(bytes_per_value)


def shape_with(formula: Callable[[ModelShape, float], float]) -> type:
    return type("Wrong", (ModelShape,), {"kv_bytes_per_token": formula})


KV_BYTES = Check(
    "2.1",
    bytes_cases,
    call=bytes_of,
    tolerance=1e-9,
    mistakes=(
        Mistake(
            "k-without-v",
            "A token leaves two vectors behind for each head, K and V: a factor of 2 is missing.",
            like=shape_with(lambda s, b: s.layers * s.kv_heads * s.head_dim * b),
        ),
        Mistake(
            "one-layer",
            "Every layer keeps K and V of its own: a factor is missing.",
            like=shape_with(lambda s, b: 2 * s.kv_heads * s.head_dim * b),
        ),
        Mistake(
            "query-heads",
            "Query heads that share a K/V head share what it leaves behind: count K/V heads.",
            like=shape_with(lambda s, b: 2 * s.layers * s.heads * s.head_dim * b),
        ),
        Mistake(
            "hidden-size",
            "What is kept are K and V, one vector of head_dim for each K/V head, not the hidden state.",
            like=shape_with(lambda s, b: 2 * s.layers * s.hidden * b),
        ),
        Mistake(
            "one-head",
            "Every K/V head keeps a vector of head_dim: how many heads are there?",
            like=shape_with(lambda s, b: 2 * s.layers * s.head_dim * b),
        ),
        Mistake(
            "bits-for-bytes",
            "bytes_per_value is in bytes already: 2 for float16, 0.5 for four bits. Nothing is to be divided by 8.",
            like=shape_with(lambda s, b: 2 * s.layers * s.kv_heads * s.head_dim * b / 8),
        ),
        Mistake(
            "bits-for-bytes",
            "Bytes are asked for: eight times as much are bits.",
            like=shape_with(lambda s, b: 2 * s.layers * s.kv_heads * s.head_dim * b * 8),
        ),
        Mistake(
            "always-two-bytes",
            "bytes_per_value says how many bytes a value takes: 2 is only the default.",
            like=shape_with(lambda s, b: 4 * s.layers * s.kv_heads * s.head_dim),
        ),
        Mistake(
            "always-two-bytes",
            "Values are counted, not bytes: bytes_per_value is missing.",
            like=shape_with(lambda s, b: 2 * s.layers * s.kv_heads * s.head_dim),
        ),
        Mistake(
            "k-and-v-twice",
            "kv_size is the size of K alone; K and V together are twice that, not four times.",
            like=shape_with(lambda s, b: 4 * s.layers * s.kv_heads * s.head_dim * b),
        ),
    ),
)

CHECKS = (KV_BYTES,)
