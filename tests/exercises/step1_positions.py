"""The checks of 1.7 and 1.8. A reader runs them with: minillm check 1.7"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minillm.attention import reference
from minillm.course import hunts
from minillm.course.checks import Case, Check, Mistake, Outcome

SCALE = 0.5


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


# 1.7


def rope_cases() -> list[Case]:
    def case(
        about: str,
        tokens: int,
        heads: int,
        dim: int,
        angles: list[float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Case:
        turn = torch.tensor(angles)[None] if angles else random(tokens, dim // 2, seed=5)
        args = {
            "x": random(tokens, heads, dim, seed=4, dtype=dtype),
            "cos": turn.cos().to(dtype),
            "sin": turn.sin().to(dtype),
        }
        shown = f"x {list(args['x'].shape)}, cos and sin {list(turn.shape)}, {str(dtype).removeprefix('torch.')}" + (
            f", angles {angles}" if angles else ""
        )
        return Case(about, args, shown)

    return [
        case("position 0: nothing is turned", 1, 1, 4, [0.0, 0.0]),
        case("one token, one head, two pairs", 1, 1, 4, [0.5, 1.0]),
        case("three tokens", 3, 1, 4),
        case("two tokens, two heads", 2, 2, 4),
        case("two tokens, three heads, float64", 2, 3, 6, dtype=torch.float64),
    ]


def turned(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    sign: int = 1,
    neighbours: bool = False,
    by_head: bool = False,
    half: bool = False,
) -> torch.Tensor:
    """apply_rope with a switch for each mistake."""
    cos, sin = (cos[None], sin[None]) if by_head else (cos[:, None], sin[:, None])
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else x.chunk(2, dim=-1)
    one = first * cos - sign * second * sin
    other = second if half else second * cos + sign * first * sin
    return torch.stack((one, other), dim=-1).flatten(-2) if neighbours else torch.cat((one, other), dim=-1)


def turns(**switches: Any) -> Callable[..., torch.Tensor]:
    return lambda x, cos, sin: turned(x, cos, sin, **switches)


def mixed_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs of neighbours taken, and put back as halves."""
    first, second, cos, sin = x[..., ::2], x[..., 1::2], cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def no_rotation(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Both products with a plus: a hyperbolic turn, whose length is not kept."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        (first * cos[:, None] + second * sin[:, None], second * cos[:, None] + first * sin[:, None]), dim=-1
    )


ROPE = Check(
    "1.7",
    rope_cases,
    tolerance=1e-5,
    telling=True,
    mistakes=(
        Mistake(
            "neighbouring-pairs",
            "The partner of value i is value i + D/2, half a head further on, not its neighbour.",
            like=turns(neighbours=True),
        ),
        Mistake(
            "neighbouring-pairs",
            "The partner of value i is value i + D/2, half a head further on, not its neighbour.",
            like=mixed_pairs,
        ),
        Mistake(
            "turned-backwards", "It turns the other way: the minus belongs to the first half.", like=turns(sign=-1)
        ),
        Mistake("no-minus", "A rotation has one minus: first·cos - second·sin.", like=no_rotation),
        Mistake(
            "cos-and-sin-swapped",
            "At angle 0 nothing must change: cos(0) is 1. Are cos and sin the wrong way round?",
            like=lambda x, cos, sin: turned(x, sin, cos),
        ),
        Mistake(
            "second-half-untouched", "Both coordinates of a pair change when it is turned.", like=turns(half=True)
        ),
        Mistake(
            "angle-by-head",
            "The angle belongs to the token, the same for all of its heads: cos needs its new "
            "dimension between T and D/2.",
            like=turns(by_head=True),
        ),
        Mistake(
            "halves-overwritten",
            "The second line must use the first half as it was before the first line changed it.",
            like=lambda x, cos, sin: torch.cat(
                (
                    turned(x, cos, sin).chunk(2, -1)[0],
                    x.chunk(2, -1)[1] * cos[:, None] + turned(x, cos, sin).chunk(2, -1)[0] * sin[:, None],
                ),
                dim=-1,
            ),
        ),
    ),
)

# 1.8

FEWEST = "as few as can be"
KEYS = ("queries", "keys", "heads", "kv_heads")


def exposes(function: Callable[[], dict[str, int]]) -> tuple[str, str, str] | None:
    """In words, so that ours are not shown: whether the bug shows, and whether heads and tokens are the fewest."""
    sizes = function()
    if sizes is None:
        return None
    if not isinstance(sizes, dict) or set(sizes) != set(KEYS):
        raise ValueError(f"sizes are {sizes!r}: expected a dict of {', '.join(KEYS)}")
    queries, keys, heads, kv_heads = (int(sizes[key]) for key in KEYS)
    if min(queries, keys, heads, kv_heads) < 1 or queries > keys or heads % kv_heads:
        raise ValueError("expected sizes of 1 or more, heads a multiple of kv_heads, and no more queries than keys")
    q, k, v = (random(queries, heads, 1, seed=1), random(keys, kv_heads, 1, seed=2), random(keys, kv_heads, 1, seed=3))
    if torch.allclose(hunts.attention_with_a_bug(q, k, v, SCALE), reference.causal_attention(q, k, v, SCALE)):
        return "no, with one K/V head" if kv_heads == 1 else "no, with a K/V head for each query head", "?", "?"
    return "yes", FEWEST if heads == 4 else "fewer will do", FEWEST if keys == 1 else "fewer will do"


def came_is(part: int, *texts: str) -> Callable[[Sequence[Outcome]], bool]:
    return lambda outcomes: outcomes[0].came[part] in texts


HUNT = Check(
    "1.8",
    lambda: [Case("your sizes, filled with random numbers", {}, "what your function returns")],
    call=exposes,
    names=("the bug shows:", "heads:", "tokens:"),
    mistakes=(
        Mistake(
            "a-head-each",
            "With a K/V head for each query head nothing has to be shared, and this bug cannot show.",
            when=came_is(0, "no, with a K/V head for each query head"),
        ),
        Mistake(
            "one-head-for-all",
            "With a single K/V head every query head gets that one: there is nothing to confuse.",
            when=came_is(0, "no, with one K/V head"),
        ),
        Mistake(
            "too-many-heads",
            "The bug shows. Fewer heads show it too: which is the smallest group that can be put in a wrong order?",
            when=came_is(1, "fewer will do"),
        ),
        Mistake(
            "too-many-tokens",
            "The bug shows. Fewer tokens show it too: with one key, softmax gives weight 1, and v itself comes out.",
            when=came_is(2, "fewer will do"),
        ),
    ),
)

CHECKS = (ROPE, HUNT)
