"""The checks of 1.5 and 1.6. A reader runs them with: minillm check 1.5"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minillm.attention import reference
from minillm.course.checks import Case, Check, Mistake

SCALE = 0.5  # not 1/sqrt(D) in any case below, so that an answer which ignores it is seen


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def plural(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


# 1.5


def attention_cases() -> list[Case]:
    def case(
        about: str,
        queries: int,
        keys: int,
        heads: int = 1,
        kv_heads: int = 1,
        dim: int = 2,
        v_dim: int = 2,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Case:
        args = {
            "q": random(queries, heads, dim, seed=1, dtype=dtype),
            "k": random(keys, kv_heads, dim, seed=2, dtype=dtype),
            "v": random(keys, kv_heads, v_dim, seed=3, dtype=dtype),
            "scale": SCALE,
            "window": window,
        }
        shown = (
            f"q {list(args['q'].shape)}, k {list(args['k'].shape)}, v {list(args['v'].shape)}, "
            f"{str(dtype).removeprefix('torch.')}, scale={SCALE}, window={window}"
        )
        return Case(about, args, shown)

    return [
        case("one query, one key", 1, 1),
        case("three queries, three keys: a prefill", 3, 3),
        case("one query, three keys: a decode step", 1, 3),
        case("two queries, five keys: a chunk after three cached tokens", 2, 5),
        case("four query heads share two K/V heads", 3, 3, heads=4, kv_heads=2),
        case("v wider than q and k", 2, 4, v_dim=3),
        case("float64", 2, 4, dtype=torch.float64),
        case("a window of two keys", 4, 4, window=2),
        case("everything at once", 5, 9, heads=6, kv_heads=3, dim=4, v_dim=4, window=4),
    ]


def masks(queries: int, keys: int, window: int | None, kind: str) -> torch.Tensor:
    """The mask with one mistake."""
    offset = 0 if kind == "top-left" else keys - queries
    i, j = torch.arange(queries)[:, None] + offset, torch.arange(keys)[None]
    if kind == "none":
        return torch.ones(queries, keys, dtype=torch.bool)
    if kind == "anti-causal":
        return j >= i
    visible = j < i if kind == "no-self" else j <= i + (1 if kind == "one-ahead" else 0)
    if window is not None and kind != "no-window":
        visible = visible & (j > i - window - (1 if kind == "wide-window" else 0))
    return visible


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None = None,
    *,
    mask: str = "right",
    tile: bool = False,
    scaling: str = "given",
    axis: int = -1,
    late: bool = False,
    softmax: bool = True,
    hidden_score: float = float("-inf"),
) -> torch.Tensor:
    """causal_attention with a switch for each mistake."""
    groups = q.shape[1] // k.shape[1]
    share = (lambda x: x.repeat(1, groups, 1)) if tile else (lambda x: x.repeat_interleave(groups, dim=1))
    factor = {"given": scale, "none": 1.0, "sqrt": q.shape[-1] ** -0.5, "divided": 1 / scale}[scaling]
    scores = torch.einsum("qhd,khd->hqk", q, share(k)) * factor
    hidden = ~masks(len(q), len(k), window, mask)
    if not late:
        scores = scores.masked_fill(hidden, hidden_score)
    weights = scores.softmax(dim=axis) if softmax else scores
    if late:
        weights = weights.masked_fill(hidden, 0.0)
    return torch.einsum("hqk,khd->qhd", weights, share(v))


def attends(**switches: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, scale, window=None: attention(q, k, v, scale, window, **switches)


def heads_first(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    return attention(q, k, v, scale, window).transpose(0, 1)


ATTENTION = Check(
    "1.5",
    attention_cases,
    tolerance=1e-5,
    telling=True,
    mistakes=(
        Mistake(
            "no-mask", "A query must not see keys that come after it: is the mask applied?", like=attends(mask="none")
        ),
        Mistake(
            "mask-top-left",
            "Right when there are as many keys as queries, wrong when some are cached: the queries are "
            "the last ones of the sequence, so query i stands at position i + S_k - S_q.",
            like=attends(mask="top-left"),
        ),
        Mistake(
            "mask-without-self",
            "A token sees itself too: is the mask's edge off by one (j <= position, not <)?",
            like=attends(mask="no-self"),
        ),
        Mistake(
            "mask-one-ahead",
            "A query sees one key too many, the one after it: is the mask's edge off by one?",
            like=attends(mask="one-ahead"),
        ),
        Mistake(
            "mask-inverted",
            "The mask hides the past and shows the future: masked_fill fills where it is True.",
            like=attends(mask="anti-causal"),
        ),
        Mistake(
            "mask-after-softmax",
            "Zeroed after the softmax, the weights no longer sum to 1: put -inf into the scores before it.",
            like=attends(late=True),
        ),
        Mistake("no-scale", "The dot products have to be multiplied by scale.", like=attends(scaling="none")),
        Mistake(
            "own-scale",
            "Use the scale that is handed in: not every model's is 1 / sqrt(D).",
            like=attends(scaling="sqrt"),
        ),
        Mistake(
            "divided-by-scale",
            "Scores are multiplied by scale; it is 1 / sqrt(D) already.",
            like=attends(scaling="divided"),
        ),
        Mistake(
            "softmax-over-queries",
            "The weights of one query over its keys sum to 1: which dimension of the scores are the keys?",
            like=attends(axis=-2),
        ),
        Mistake(
            "softmax-over-heads",
            "The weights of one query over its keys sum to 1: which dimension of the scores are the keys?",
            like=attends(axis=0),
        ),
        Mistake(
            "no-softmax",
            "Scores are not weights yet: a softmax over the keys is missing.",
            like=attends(softmax=False, hidden_score=0.0),
        ),
        Mistake(
            "hidden-is-zero",
            "A score of 0 is not a weight of 0: exp(0) is 1. What is hidden must get the score -inf.",
            like=attends(hidden_score=0.0),
        ),
        Mistake(
            "heads-tiled",
            "Query heads 0 and 1 share K/V head 0, heads 2 and 3 share head 1: repeat gives 0, 1, 0, 1; "
            "repeat_interleave gives 0, 0, 1, 1.",
            like=attends(tile=True),
        ),
        Mistake(
            "window-ignored",
            "With a window of W each query sees at most the last W keys up to itself.",
            like=attends(mask="no-window"),
        ),
        Mistake(
            "window-off-by-one",
            "A window of W shows W keys, the query's own included: j > position - W.",
            like=attends(mask="wide-window"),
        ),
        Mistake(
            "heads-first", "The result is [S_q, H, D_v]: heads and queries are the wrong way round.", like=heads_first
        ),
    ),
)

# 1.6


def ragged_cases() -> list[Case]:
    def case(
        about: str,
        query_lens: list[int],
        key_lens: list[int],
        heads: int = 1,
        kv_heads: int = 1,
        window: int | None = None,
    ) -> Case:
        args = {
            "q": random(sum(query_lens), heads, 2, seed=1),
            "keys": [random(n, kv_heads, 2, seed=2 + i) for i, n in enumerate(key_lens)],
            "values": [random(n, kv_heads, 2, seed=20 + i) for i, n in enumerate(key_lens)],
            "query_lens": query_lens,
            "scale": SCALE,
            "window": window,
        }
        shown = f"query_lens={query_lens}, keys and values of lengths {key_lens}, " + ", ".join(
            (plural(heads, "query head"), plural(kv_heads, "K/V head"), f"scale={SCALE}", f"window={window}")
        )
        return Case(about, args, shown)

    return [
        case("one row", [2], [2]),
        case("two decode steps", [1, 1], [2, 3]),
        case("two prefills", [2, 2], [2, 2]),
        case("a decode, a chunk and a prefill", [1, 2, 3], [4, 5, 3]),
        case("with shared heads", [2, 1], [3, 4], heads=4, kv_heads=2),
        case("a window of two keys", [3, 1], [3, 5], window=2),
    ]


def each_row(
    q: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    query_lens: Sequence[int],
    scale: float,
    window: int | None = None,
    *,
    part: Callable[..., torch.Tensor] | None = None,
    take: Callable[[int, int], slice] = lambda start, length: slice(start, start + length),
    cut: bool = False,
) -> torch.Tensor:
    """ragged_attention with a switch for each mistake."""
    part = part or reference.causal_attention
    outputs, start = [], 0
    for k, v, length in zip(keys, values, query_lens):
        k, v = (k[:length], v[:length]) if cut else (k, v)
        outputs.append(part(q[take(start, length)], k, v, scale, window))
        start += length
    return torch.cat(outputs)


def rows(**switches: Any) -> Callable[..., torch.Tensor]:
    return lambda q, keys, values, query_lens, scale, window=None: each_row(
        q, keys, values, query_lens, scale, window, **switches
    )


def all_as_one(
    q: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    query_lens: Sequence[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    return reference.causal_attention(q, torch.cat(list(keys)), torch.cat(list(values)), scale, window)


def first_row_only(
    q: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    query_lens: Sequence[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    return reference.causal_attention(q[: query_lens[0]], keys[0], values[0], scale, window)


def stacked(
    q: torch.Tensor,
    keys: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    query_lens: Sequence[int],
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    pieces = [
        reference.causal_attention(piece, k, v, scale, window)
        for piece, k, v in zip(q.split(list(query_lens)), keys, values)
    ]
    return torch.stack(pieces)


RAGGED = Check(
    "1.6",
    ragged_cases,
    tolerance=1e-5,
    telling=True,
    mistakes=(
        Mistake(
            "rows-see-each-other",
            "Laid end to end, the keys of all rows become one sequence: each row must attend to its own keys only.",
            like=all_as_one,
        ),
        Mistake(
            "start-stays",
            "Every row gets the first row's queries: the start has to move on after each row.",
            like=rows(take=lambda start, length: slice(0, length)),
        ),
        Mistake(
            "start-by-one",
            "The next row starts as many queries further on as this row has, not one.",
            like=lambda q, keys, values, query_lens, scale, window=None: torch.cat(
                [
                    reference.causal_attention(q[i : i + n], k, v, scale, window)
                    for i, (k, v, n) in enumerate(zip(keys, values, query_lens))
                ]
            ),
        ),
        Mistake(
            "cached-keys-dropped",
            "A row may have more keys than queries: those before are its cached context.",
            like=rows(cut=True),
        ),
        Mistake(
            "first-row-only",
            "Only the first row came back: does the function return inside its loop?",
            like=first_row_only,
        ),
        Mistake(
            "window-not-passed",
            "The window applies to each row too: is it handed on?",
            like=rows(part=lambda q, k, v, scale, window: reference.causal_attention(q, k, v, scale)),
        ),
        Mistake(
            "scale-not-passed",
            "The scale that is handed in belongs to each row too.",
            like=rows(
                part=lambda q, k, v, scale, window: reference.causal_attention(q, k, v, q.shape[-1] ** -0.5, window)
            ),
        ),
        Mistake(
            "stacked",
            "Rows have different lengths: lay their results end to end (cat), [T, H, D_v], not on a new dimension.",
            like=stacked,
        ),
    ),
)

CHECKS = (ATTENTION, RAGGED)
