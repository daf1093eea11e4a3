"""The checks of 4.13 and 4.14. A reader runs them with: minillm check 4.13"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minillm.attention import reference, variants
from minillm.course import hunts
from minillm.course.checks import Case, Check, Mistake, Outcome


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


# 4.13


def absorb_cases() -> list[Case]:
    def case(about: str, q_nope: torch.Tensor, q_rope: torch.Tensor, w_uk: torch.Tensor) -> Case:
        args = {"q_nope": q_nope, "q_rope": q_rope, "w_uk": w_uk}
        small = all(x.numel() <= 4 for x in args.values())
        shown = ", ".join(f"{name}={x.long().tolist()}" if small else f"{name} {list(x.shape)}"
                          for name, x in args.items())
        return Case(about, args, shown, "absorb")

    def numbers(values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return [
        case("one head, R = 2", numbers([[[2]]]), numbers([[[5]]]), numbers([[[3, 4]]])),
        case("one head, D_n = R = 2", numbers([[[1, 10]]]), numbers([[[5, 6]]]), numbers([[[1, 2], [3, 4]]])),
        case("two heads", numbers([[[2], [1]]]), numbers([[[5], [6]]]), numbers([[[3, 4]], [[7, 8]]])),
        case("two tokens, two heads, D_n = R = 2", random(2, 2, 2, seed=1), random(2, 2, 3, seed=2),
             random(2, 2, 2, seed=3)),
        case("three tokens, two heads, D_n = 4, R = 3, float64", random(3, 2, 4, seed=1, dtype=torch.float64),
             random(3, 2, 2, seed=2, dtype=torch.float64), random(2, 4, 3, seed=3, dtype=torch.float64)),
    ]


def latent_cases() -> list[Case]:
    def case(about: str, queries: int, keys: int, heads: int, nope: int, rope: int, rank: int, v_dim: int) -> Case:
        args = {"q_nope": random(queries, heads, nope, seed=1), "q_rope": random(queries, heads, rope, seed=2),
                "latent": random(keys, rank, seed=3), "k_rope": random(keys, rope, seed=4),
                "w_uk": random(heads, nope, rank, seed=5), "w_uv": random(heads, v_dim, rank, seed=6)}
        shown = f"S_q={queries}, S_k={keys}, H={heads}, D_n={nope}, D_r={rope}, R={rank}, D_v={v_dim}"
        return Case(about, args, shown, "mla_absorbed")

    return [
        case("one query, one latent: its value", 1, 1, 1, 2, 1, 3, 2),
        case("one query, three latents", 1, 3, 1, 2, 1, 3, 2),
        case("three queries: a prefill", 3, 3, 1, 2, 2, 2, 2),
        case("two heads, a chunk after two cached tokens", 2, 4, 2, 4, 2, 5, 3),
    ]


def absorbed(q_nope: torch.Tensor, q_rope: torch.Tensor, w_uk: torch.Tensor, *, product: str = "shn,hnr->shr",
             weights: Callable[[torch.Tensor], torch.Tensor] = lambda w_uk: w_uk,
             beside: Callable[..., list[torch.Tensor]] = lambda q_latent, q_rope: [q_latent, q_rope]) -> torch.Tensor:
    """absorb with a switch for each mistake."""
    return torch.cat(beside(torch.einsum(product, q_nope, weights(w_uk)), q_rope), dim=-1)


def absorbs(**switches: Any) -> Callable[..., torch.Tensor]:
    return lambda q_nope, q_rope, w_uk: absorbed(q_nope, q_rope, w_uk, **switches)


def over_latents(q_nope: torch.Tensor, q_rope: torch.Tensor, latent: torch.Tensor, k_rope: torch.Tensor,
                 w_uk: torch.Tensor, w_uv: torch.Tensor, *,
                 scaling: Callable[[int, int, int], float] = lambda nope, rope, rank: (nope + rope) ** -0.5,
                 key: Callable[..., list[torch.Tensor]] = lambda latent, k_rope: [latent, k_rope],
                 query: Callable[..., torch.Tensor] = absorbed,
                 attend: Callable[..., torch.Tensor] = reference.causal_attention,
                 project: Callable[..., torch.Tensor] = lambda out, w_uk, w_uv: variants.values_from_latent(out, w_uv),
                 ) -> torch.Tensor:
    """mla_absorbed with a switch for each mistake."""
    scale = scaling(q_nope.shape[-1], q_rope.shape[-1], latent.shape[-1])
    k = torch.cat(key(latent, k_rope), dim=-1)[:, None]
    return project(attend(query(q_nope, q_rope, w_uk), k, latent[:, None], scale), w_uk, w_uv)


def attends(**switches: Callable) -> Callable[..., torch.Tensor]:
    return lambda q_nope, q_rope, latent, k_rope, w_uk, w_uv: over_latents(
        q_nope, q_rope, latent, k_rope, w_uk, w_uv, **switches)


def sees_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    visible = torch.ones(len(q), len(k), dtype=torch.bool)
    return variants.grouped_query(q, k, v, scale, visible)


def without_positions(q_nope: torch.Tensor, q_rope: torch.Tensor, w_uk: torch.Tensor) -> torch.Tensor:
    return torch.einsum("shn,hnr->shr", q_nope, w_uk)


TRANSPOSED = "The sum goes over D_n, the values of q: the first dimension of each head's w_uk [D_n, R]. R stays."
OWN = "Each head has a w_uk of its own: h stays in the product and in the result."
ABSORBING = (
    Mistake("transposed", TRANSPOSED, like=absorbs(product="shn,hrn->shr")),
    Mistake("transposed", TRANSPOSED, like=lambda q_nope, q_rope, w_uk: torch.cat(
        [(q_nope.transpose(0, 1) @ w_uk.mT).transpose(0, 1), q_rope], dim=-1)),
    Mistake("rope-dropped", "The rotated part stays in the query, behind the latent one: [S, H, R + D_r].",
            like=absorbs(beside=lambda q_latent, q_rope: [q_latent])),
    Mistake("rope-first", "The key is the latent and then its rotated part: the query goes in the same order.",
            like=absorbs(beside=lambda q_latent, q_rope: [q_rope, q_latent])),
    Mistake("first-heads-weights", OWN, like=absorbs(weights=lambda w: w[:1].expand_as(w))),
    Mistake("heads-summed", OWN, like=absorbs(weights=lambda w: w.sum(0, keepdim=True).expand_as(w))),
    Mistake("heads-summed", OWN, like=absorbs(
        product="shn,hnr->sr", beside=lambda q, rope: [q[:, None].expand(-1, rope.shape[1], -1), rope])),
    Mistake("not-absorbed", "q_nope has D_n values, the latent R: w_uk leads from one to the other.",
            like=lambda q_nope, q_rope, w_uk: torch.cat([q_nope, q_rope], dim=-1)),
    Mistake("scaled-here", "No scale here: attention multiplies the product of query and key by it.",
            like=lambda q_nope, q_rope, w_uk: absorbed(q_nope, q_rope, w_uk)
            * variants.mla_scale(q_nope.shape[-1], q_rope.shape[-1])),
)
LATENTS = (
    Mistake(
        "scale-of-the-latent",
        "The absorbed key is longer, but its products with the query are the same numbers: the scale stays "
        "1/sqrt(D_n + D_r).",
        like=attends(scaling=lambda nope, rope, rank: (rank + rope) ** -0.5),
    ),
    Mistake("scale-without-rope", "An expanded key has D_n + D_r values: the rotated ones count too.",
            like=attends(scaling=lambda nope, rope, rank: nope**-0.5)),
    Mistake("scale-without-rope", "The scale is that of the expanded key, D_n + D_r values, not of the latent.",
            like=attends(scaling=lambda nope, rope, rank: rank**-0.5)),
    Mistake("no-scale", "Scores are multiplied by 1/sqrt(D_n + D_r).",
            like=attends(scaling=lambda nope, rope, rank: 1.0)),
    Mistake("no-root", "The scale is one over the square root of D_n + D_r.",
            like=attends(scaling=lambda nope, rope, rank: 1 / (nope + rope))),
    Mistake("rope-dropped", "The rotated parts of query and key belong to the score: they know where tokens stand.",
            like=attends(key=lambda latent, k_rope: [latent], query=without_positions)),
    Mistake("parts-crossed", "absorb has the latent part first: the key goes in the same order, latent, then k_rope.",
            like=attends(key=lambda latent, k_rope: [k_rope, latent])),
    Mistake("not-projected", "Attention gives each head a mean of latents: values_from_latent makes its value of it.",
            like=attends(project=lambda out, w_uk, w_uv: out)),
    Mistake("key-weights-for-values", "w_uk makes keys of latents; values are made with w_uv.",
            like=attends(project=lambda out, w_uk, w_uv: variants.values_from_latent(out, w_uk))),
    Mistake("not-causal", "A query must not see latents that come after it.", like=attends(attend=sees_all)),
)

LATENT = Check(
    "4.13",
    lambda: [*absorb_cases(), *latent_cases()],
    tolerance=1e-5,
    mistakes=(
        *(replace(mistake, function="absorb") for mistake in ABSORBING),
        *(replace(mistake, function="mla_absorbed") for mistake in LATENTS),
    ),
)

# 4.14

FEWEST = "as few as can be"
NAMES = ("queries", "keys", "block", "window")


def read(sizes: Any) -> list[int]:
    """Raises ValueError for what are not the four sizes."""
    if not isinstance(sizes, dict) or set(sizes) != set(NAMES):
        raise ValueError(f"sizes are {sizes!r}: expected a dict of {', '.join(NAMES)}"[:150])
    numbers = [sizes[name] for name in NAMES]
    if any(type(number) is not int or not 1 <= number <= 1000 for number in numbers) or numbers[0] > numbers[1]:
        raise ValueError("expected whole numbers from 1 to 1000, and no more queries than keys")
    return numbers


def leaks(function: Callable[[], Any]) -> tuple[str, str] | None:
    """In words, so that ours are not shown: whether the bug shows, and whether queries and keys are the fewest."""
    sizes = function()
    if sizes is None:
        return None
    queries, keys, block, window = read(sizes)
    wanted = reference.causal_mask(queries, keys, window, "cpu")
    if not torch.equal(hunts.seen_with_a_bug(queries, keys, block, window), wanted):
        return "yes", FEWEST if queries + keys == 3 else "fewer will do"
    if window >= keys:
        return "no, the window shows every key", "?"
    if block == 1:
        return "no, each tile is a single key", "?"
    return "no, the tiles with the window's edge are masked, or skipped as a whole", "?"


def came_is(part: int, text: str) -> Callable[[Sequence[Outcome]], bool]:
    return lambda outcomes: outcomes[0].came[part] == text


HUNT = Check(
    "4.14",
    lambda: [Case("your sizes", {}, "what your function returns")],
    call=leaks,
    names=("the bug shows:", "queries and keys:"),
    mistakes=(
        Mistake(
            "window-too-wide",
            "A window as wide as the text hides nothing: only the causal edge is left, and that one is right.",
            when=came_is(0, "no, the window shows every key"),
        ),
        Mistake(
            "tiles-of-one-key",
            "With one key a tile is hidden or seen as a whole: no mask is needed, and none is missed.",
            when=came_is(0, "no, each tile is a single key"),
        ),
        Mistake(
            "edge-between-tiles",
            "Tiles with keys that come too late get the whole mask, and tiles that are too old are skipped. The bug "
            "needs a tile in between, of which a part is too old.",
            when=came_is(0, "no, the tiles with the window's edge are masked, or skipped as a whole"),
        ),
        Mistake(
            "too-many-tokens",
            "The bug shows. Fewer show it too: which queries see what they should, and which keys does nobody miss?",
            when=came_is(1, "fewer will do"),
        ),
    ),
)

CHECKS = (LATENT, HUNT)
