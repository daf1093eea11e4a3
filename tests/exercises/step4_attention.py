"""The checks of 4.7 and 4.8. A reader runs them with: minillm check 4.7"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minillm.attention import variants
from minillm.course.checks import Case, Check, Mistake

SCALE = 0.5  # not 1/sqrt(D) in any case below, so that an answer which ignores it is seen


def random(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


# 4.7


def expand_cases() -> list[Case]:
    def case(about: str, tokens: int, kv_heads: int, heads: int, dim: int = 1,
             dtype: torch.dtype = torch.float32) -> Case:
        at = [torch.arange(size) for size in (tokens, kv_heads, dim)]
        kv = (100 * at[0][:, None, None] + 10 * at[1][:, None] + at[2]).to(dtype)  # a value says whose it is
        shown = f"kv {list(kv.shape)}, token t, head h, value d is 100·t + 10·h + d; heads={heads}"
        return Case(about, {"kv": kv, "heads": heads}, shown, "expand_kv_heads")

    return [
        case("two K/V heads for four query heads", 1, 2, 4),
        case("one K/V head for three query heads", 1, 1, 3),
        case("a K/V head for each query head", 1, 3, 3),
        case("three tokens", 3, 2, 4),
        case("three K/V heads for six query heads, two values, float64", 2, 3, 6, 2, torch.float64),
    ]


def grouped_cases() -> list[Case]:
    def case(about: str, queries: int, keys: int, heads: int, kv_heads: int, dim: int = 2, v_dim: int = 2,
             visible: torch.Tensor | None = None) -> Case:
        mask = torch.ones(queries, keys).tril(keys - queries).bool() if visible is None else visible
        args = {"q": random(queries, heads, dim, seed=1), "k": random(keys, kv_heads, dim, seed=2),
                "v": random(keys, kv_heads, v_dim, seed=3), "scale": SCALE, "visible": mask}
        sizes = ", ".join(f"{name} {list(args[name].shape)}" for name in ("q", "k", "v"))
        hidden = f"{int((~mask).sum())} of {mask.numel()} hidden"
        return Case(about, args, f"{sizes}, scale={SCALE}, visible [{queries}, {keys}], {hidden}", "grouped_query")

    return [
        case("a K/V head for each query head", 1, 2, 2, 2),
        case("one K/V head for all", 1, 2, 3, 1),
        case("two K/V heads for four query heads", 1, 3, 4, 2),
        case("two K/V heads for six query heads, a prefill", 3, 3, 6, 2, dim=3),
        case("a mask of its own", 2, 3, 4, 2, visible=torch.tensor([[1, 0, 1], [0, 1, 1]]).bool()),
        case("v wider than q and k", 2, 4, 4, 2, v_dim=3),
    ]


def group_of(kv: torch.Tensor, heads: int) -> int:
    return heads // kv.shape[1]


EXPANDING = (
    Mistake(
        "heads-tiled",
        "Query heads 0 and 1 share K/V head 0, heads 2 and 3 share head 1: repeat gives 0, 1, 0, 1; "
        "repeat_interleave gives 0, 0, 1, 1.",
        like=lambda kv, heads: kv.repeat(1, group_of(kv, heads), 1),
    ),
    Mistake(
        "tokens-repeated",
        "Heads are repeated, not tokens: which dimension of kv holds the heads?",
        like=lambda kv, heads: kv.repeat_interleave(group_of(kv, heads), dim=0),
    ),
    Mistake(
        "tokens-repeated",
        "Heads are repeated, not tokens: which dimension of kv holds the heads?",
        like=lambda kv, heads: kv.repeat(group_of(kv, heads), 1, 1),
    ),
    Mistake(
        "values-repeated",
        "Heads are repeated, not the values in them: which dimension of kv holds the heads?",
        like=lambda kv, heads: kv.repeat_interleave(group_of(kv, heads), dim=2),
    ),
    Mistake(
        "flattened",
        "Without a dimension repeat_interleave lays everything in one row first: say which one holds the heads.",
        like=lambda kv, heads: kv.repeat_interleave(group_of(kv, heads)),
    ),
    Mistake(
        "as-often-as-heads",
        "H heads in all: each K/V head is repeated for its group only, H / H_kv times.",
        like=lambda kv, heads: kv.repeat_interleave(heads, dim=1),
    ),
    Mistake(
        "as-often-as-kv-heads",
        "How often a K/V head is repeated is the size of its group, H / H_kv, not the number of K/V heads.",
        like=lambda kv, heads: kv.repeat_interleave(kv.shape[1], dim=1),
    ),
    Mistake(
        "group-of-tokens",
        "The group's size is query heads over K/V heads: kv.shape[0] is the number of tokens.",
        like=lambda kv, heads: kv.repeat_interleave(heads // kv.shape[0], dim=1),
    ),
    Mistake(
        "one-head-for-all",
        "All query heads get the first K/V head here: the others have a group each too.",
        like=lambda kv, heads: kv[:, :1].repeat(1, heads, 1),
    ),
    Mistake(
        "not-expanded",
        "There are heads for H_kv query heads only: repeat each for its group.",
        like=lambda kv, heads: kv,
    ),
    Mistake(
        "group-not-joined",
        "The copies of a head stand on a dimension of their own: make one of it and of the heads.",
        like=lambda kv, heads: kv[:, :, None].repeat(1, 1, group_of(kv, heads), 1),
    ),
)


def attends(k_heads: Callable = variants.expand_kv_heads, v_heads: Callable = variants.expand_kv_heads,
            scaling: Callable = lambda q, scale: scale,
            masking: Callable = lambda visible: visible) -> Callable[..., torch.Tensor]:
    """grouped_query with a switch for each mistake."""
    def grouped_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
                      visible: torch.Tensor) -> torch.Tensor:
        heads = q.shape[1]
        return variants.multi_head(q, k_heads(k, heads), v_heads(v, heads), scaling(q, scale), masking(visible))

    return grouped_query


def tiled(kv: torch.Tensor, heads: int) -> torch.Tensor:
    return kv.repeat(1, group_of(kv, heads), 1)


def alone(kv: torch.Tensor, heads: int) -> torch.Tensor:
    return kv


def first(kv: torch.Tensor, heads: int) -> torch.Tensor:
    return kv[:, :1].expand(-1, heads, -1)


NOT_EXPANDED = "multi_head wants a K and a V for each query head: both have to be expanded."
GROUPING = (
    Mistake("not-expanded", NOT_EXPANDED, like=attends(alone, alone)),
    Mistake("not-expanded", NOT_EXPANDED, like=attends(v_heads=alone)),
    Mistake("not-expanded", NOT_EXPANDED, like=attends(k_heads=alone)),
    Mistake(
        "heads-tiled",
        "The query heads of a group are neighbours: expand_kv_heads has them in that order already.",
        like=attends(tiled, tiled),
    ),
    Mistake(
        "groups-differ",
        "K and V of a query head come from the same K/V head: expand both in the same way.",
        like=attends(v_heads=tiled),
    ),
    Mistake(
        "one-head-for-all",
        "All query heads get the first K/V head here: that is MQA with the rest thrown away.",
        like=attends(first, first),
    ),
    Mistake(
        "mask-dropped",
        "Hidden keys are seen here: `visible` has to be handed on as it came.",
        like=attends(masking=torch.ones_like),
    ),
    Mistake(
        "mask-inverted",
        "visible is True where a key is seen, and multi_head wants just that.",
        like=attends(masking=torch.logical_not),
    ),
    Mistake(
        "own-scale",
        "Use the scale that is handed in: not every model's is 1 / sqrt(D).",
        like=attends(scaling=lambda q, scale: q.shape[-1] ** -0.5),
    ),
    Mistake(
        "no-scale",
        "The scale that is handed in has to be handed on.",
        like=attends(scaling=lambda q, scale: 1.0),
    ),
    Mistake(
        "k-and-v-swapped",
        "Scores are made with K, results with V: are the two the wrong way round?",
        like=lambda q, k, v, scale, visible: variants.grouped_query(q, v, k, scale, visible),
    ),
)

GROUPS = Check(
    "4.7",
    lambda: [*expand_cases(), *grouped_cases()],
    tolerance=1e-5,
    mistakes=(
        *(replace(mistake, function="expand_kv_heads") for mistake in EXPANDING),
        *(replace(mistake, function="grouped_query") for mistake in GROUPING),
    ),
)

# 4.8


def mask_cases() -> list[Case]:
    def case(about: str, queries: int, keys: int, window: int | None = None, device: str = "cpu") -> Case:
        return Case(about, {"queries": queries, "keys": keys, "window": window, "device": device})

    return [
        case("one query, one key", 1, 1),
        case("three queries, three keys: a prefill", 3, 3),
        case("one query, three keys: a decode step", 1, 3),
        case("two queries, four keys: a chunk after two cached tokens", 2, 4),
        case("a window of two keys", 4, 4, 2),
        case("a window of one key: itself", 3, 3, 1),
        case("a window of two keys, two tokens are cached", 2, 4, 2),
        case("a decode step with a window of three", 1, 5, 3),
        case("a window as wide as the text", 3, 3, 3),
        case("a window that is wider", 2, 3, 9),
        case("three queries, two keys: the first query stands before the text", 3, 2),
        case("everything at once", 4, 7, 3),
        case("on another device (meta: one without memory)", 2, 3, 2, "meta"),
    ]


def called(function: Callable[..., Any], **args: Any) -> Any:
    """The mask; of one on another device, which cannot be read, where it is and its shape."""
    mask = function(**args)
    if isinstance(mask, torch.Tensor) and args["device"] != "cpu":
        return str(mask.device), list(mask.shape)
    return mask


def see(queries: int, keys: int, window: int | None, device: str, *,
        late: Callable[..., torch.Tensor] = lambda i, j: j > i,
        old: Callable[..., torch.Tensor] = lambda i, j, window: j <= i - window,
        offset: Callable[[int, int], int] = lambda queries, keys: keys - queries,
        join: Callable[..., torch.Tensor] = torch.logical_or) -> torch.Tensor:
    """causal_mask with a switch for each mistake. `late`, `old`: what is hidden; `join`: the two together."""
    i = torch.arange(queries, device=device)[:, None] + offset(queries, keys)
    i, j = torch.broadcast_tensors(i, torch.arange(keys, device=device))  # [S_q, S_k]
    hidden = late(i, j)
    return ~(hidden if window is None else join(hidden, old(i, j, window)))


def sees(**switches: Callable) -> Callable[..., torch.Tensor]:
    return lambda queries, keys, window, device: see(queries, keys, window, device, **switches)


def filled(hidden: float, seen: float = 0.0) -> Callable[..., torch.Tensor]:
    def mask(queries: int, keys: int, window: int | None, device: str) -> torch.Tensor:
        visible = see(queries, keys, window, device)
        return torch.where(visible, seen, hidden)

    return mask


def crossed(mask: torch.Tensor) -> torch.Tensor:
    return mask.transpose(0, 1)


BEHIND = "With a window of W the query itself is one of the W keys: j > i - W."
LATER = "A query must not see keys that come after it, with a window or without."
BOTH = "A window looks back only: keys that come later stay hidden, whether or not there is a window."
MASK = Check(
    "4.8",
    mask_cases,
    call=called,
    telling=True,
    draw=lambda ours, theirs, args: drawn(ours, theirs, args),
    mistakes=(
        Mistake(
            "mask-top-left",
            "Right when there are as many keys as queries, wrong when some are cached: the queries are "
            "the last ones of the sequence, so query i stands at position i + S_k - S_q.",
            like=sees(offset=lambda queries, keys: 0),
        ),
        Mistake("offset-backwards", "Cached tokens stand before the queries: these are further on, by S_k - S_q.",
                like=sees(offset=lambda queries, keys: queries - keys)),
        Mistake("mask-without-self", "A token sees itself too: is the mask's edge off by one (j <= i, not <)?",
                like=sees(late=lambda i, j: j >= i)),
        Mistake("mask-one-ahead", "A query sees one key too many, the one after it: is the mask's edge off by one?",
                like=sees(late=lambda i, j: j > i + 1)),
        Mistake("mask-inverted", "True is asked for where a key may be seen, not where it is hidden.",
                like=lambda **args: ~see(**args)),
        Mistake("future-seen", "The keys before a query are seen, not those behind it.",
                like=sees(late=lambda i, j: j < i)),
        Mistake("not-causal", LATER, like=sees(late=lambda i, j: j > j)),
        Mistake("not-causal", LATER, like=sees(late=lambda i, j: j > j,
                                               old=lambda i, j, window: (j <= i - window) | (j > i))),
        Mistake("window-looks-ahead", BOTH, like=sees(join=lambda late, old: old)),
        Mistake("window-looks-ahead", BOTH, like=sees(
            join=lambda late, old: old, old=lambda i, j, window: (i - j).abs() >= window)),
        Mistake("window-looks-ahead", BOTH, like=sees(
            join=lambda late, old: old, old=lambda i, j, window: (i - j).abs() > window)),
        Mistake("window-off-by-one", BEHIND, like=sees(old=lambda i, j, window: j < i - window)),
        Mistake("window-off-by-one", "A window of W shows W keys, one fewer is seen here: j > i - W.",
                like=sees(old=lambda i, j, window: j <= i - window + 1)),
        Mistake("window-ignored", "With a window of W each query sees at most the last W keys up to itself.",
                like=sees(old=lambda i, j, window: j > j)),
        Mistake("window-inverted", "What lies W positions back or more is hidden; here that is all that is seen.",
                like=sees(old=lambda i, j, window: j > i - window)),
        Mistake("window-of-the-text", "Each query has its own window, which slides along with it.",
                like=sees(old=lambda i, j, window: j <= i.max() - window)),
        Mistake("window-of-the-first", "Each query has its own window, which slides along with it.",
                like=sees(old=lambda i, j, window: j <= i.min() - window)),
        Mistake("window-from-the-row", "The window too is counted from where the query stands, i + S_k - S_q.",
                like=lambda queries, keys, window, device: see(
                    queries, keys, window, device,
                    old=lambda i, j, window: j <= i - (keys - queries) - window)),
        Mistake("or-instead-of-and", "A key is seen if it is not too late and not too old: both have to hold.",
                like=sees(join=torch.logical_and)),
        Mistake("blocks-not-a-window", "The window slides with each query: it does not jump from W to W.",
                like=sees(old=lambda i, j, window: j < i // window * window)),
        Mistake(
            "numbers-instead",
            "True and False are asked for. Whoever uses the mask puts -inf: with a number like -1e30 a row that "
            "sees nothing would become the mean of V instead of 0.",
            like=filled(-1e30)),
        Mistake("numbers-instead", "True and False are asked for: whoever uses the mask puts -inf into the scores.",
                like=filled(float("-inf"))),
        Mistake("numbers-instead", "True and False are asked for, dtype bool, not 1 and 0.", like=filled(0.0, 1.0)),
        Mistake("numbers-instead", "True and False are asked for, dtype bool, not 1 and 0.",
                like=lambda **args: see(**args).long()),
        Mistake("rows-are-keys", "A row for each query, a column for each key: [S_q, S_k].",
                like=lambda **args: crossed(see(**args))),
        Mistake(
            "device-ignored",
            "The model may be on a GPU: make everything on `device`, or its scores and this mask do not meet.",
            like=lambda queries, keys, window, device: see(queries, keys, window, "cpu")),
    ),
)


def drawn(ours: Callable[..., Any], theirs: Callable[..., Any], args: dict[str, Any]) -> Sequence[str]:
    """The two masks as letters, a row for each query; nothing if there is no such mask."""
    try:
        came, wanted = theirs(**args), ours(**args)
        rows = [[" ".join("x" if seen else "." for seen in row) for row in mask.bool().tolist()]
                for mask in (came, wanted)]
    except Exception:
        return []  # the result says what was raised, or what came instead
    if came.shape != wanted.shape or came.dtype != torch.bool:
        return []
    wide = max(len("yours"), len(rows[0][0]))
    lines = [f"query {i}   {mine:<{wide}}   {right}" for i, (mine, right) in enumerate(zip(*rows))]
    return [f"          {'yours':<{wide}}   expected", *lines, "x seen   . hidden"]


CHECKS = (GROUPS, MASK)
