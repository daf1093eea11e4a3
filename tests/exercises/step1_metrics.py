"""The checks of 1.1 and 1.2. A reader runs them with: minillm check 1.1"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minillm.course.checks import Case, Check, Mistake, Outcome, part_is
from minillm.measure.shape import ModelShape

# 1.1


def metrics_cases() -> list[Case]:
    return [
        Case("two tokens", {"arrival": 10.0, "token_times": [10.5, 10.75]}),
        Case("one token only", {"arrival": 10.0, "token_times": [10.5]}),
        Case("four tokens, unevenly spaced", {"arrival": 2.0, "token_times": [3.0, 3.25, 4.0, 4.25]}),
    ]


def several(arrival: float, token_times: Sequence[float]) -> bool:
    return len(token_times) > 1


def one(arrival: float, token_times: Sequence[float]) -> bool:
    return len(token_times) == 1


def only_one_token_is_wrong(outcomes: Sequence[Outcome]) -> bool:
    return all(o.right != one(**o.case.args) for o in outcomes)


def gaps(arrival: float, token_times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in zip(token_times, token_times[1:])]


METRICS = Check(
    "1.1",
    metrics_cases,
    names=("TTFT", "TPOT", "ITLs"),
    tolerance=1e-9,
    mistakes=(
        Mistake(
            "ttft-is-a-timestamp",
            "A time to first token is a duration: how long after the request came is it?",
            when=part_is(0, lambda arrival, token_times: token_times[0]),
        ),
        Mistake(
            "ttft-is-e2e",
            "That is how long the whole answer took. TTFT ends with the first token.",
            when=part_is(0, lambda arrival, token_times: token_times[-1] - arrival, among=several),
        ),
        Mistake(
            "tpot-divides-by-tokens",
            "N tokens have N - 1 gaps between them: count fence posts and gaps.",
            when=part_is(
                1, lambda arrival, token_times: (token_times[-1] - token_times[0]) / len(token_times), among=several
            ),
        ),
        Mistake(
            "tpot-from-arrival",
            "The wait for the first token is TTFT's. TPOT starts at the first token.",
            when=part_is(
                1, lambda arrival, token_times: (token_times[-1] - arrival) / (len(token_times) - 1), among=several
            ),
        ),
        Mistake(
            "tpot-from-arrival",
            "The wait for the first token is TTFT's: TPOT starts at the first token, and there "
            "is one gap fewer than there are tokens.",
            when=part_is(
                1, lambda arrival, token_times: (token_times[-1] - arrival) / len(token_times), among=several
            ),
        ),
        Mistake(
            "tpot-is-a-median",
            "TPOT is the mean of the gaps, not their middle one.",
            when=part_is(
                1,
                lambda arrival, token_times: sorted(gaps(arrival, token_times))[(len(token_times) - 1) // 2],
                among=several,
            ),
        ),
        Mistake(
            "first-token-in-itl",
            "The wait for the first token is TTFT, not a gap between two tokens.",
            when=part_is(2, lambda arrival, token_times: gaps(arrival, [arrival, *token_times])),
        ),
        Mistake(
            "itl-from-the-first",
            "A gap lies between neighbours: subtract the token before, not the first one.",
            when=part_is(
                2, lambda arrival, token_times: [t - token_times[0] for t in token_times[1:]], among=several
            ),
        ),
        Mistake(
            "a-gap-is-missing",
            "Four tokens have three gaps: is a slice or a range one too short?",
            when=lambda outcomes: (
                part_is(2, lambda arrival, token_times: gaps(arrival, token_times)[:-1])(outcomes)
                or part_is(2, lambda arrival, token_times: gaps(arrival, token_times)[1:])(outcomes)
            ),
        ),
        Mistake(
            "one-token",
            "A request with one token has no gap: its TPOT is None, and its ITLs are an empty list.",
            when=only_one_token_is_wrong,
        ),
    ),
)

# 1.2

TINY = ModelShape("tiny", layers=2, hidden=8, heads=6, kv_heads=2, head_dim=3, intermediate=20, vocab=50, context=64)


def step_cases() -> list[Case]:
    def case(
        about: str, query_lens: list[int], context_lens: list[int], weight_bytes: float = 2.0, kv_bytes: float = 2.0
    ) -> Case:
        args = {
            "shape": TINY,
            "query_lens": query_lens,
            "context_lens": context_lens,
            "weight_bytes": weight_bytes,
            "kv_bytes": kv_bytes,
        }
        shown = (
            f"query_lens={query_lens}, context_lens={context_lens}, weight_bytes={weight_bytes}, kv_bytes={kv_bytes}, "
            f"a shape of {TINY.layers} layers, linear_params {TINY.linear_params}, head_params {TINY.head_params}, "
            f"q_size {TINY.q_size}, kv_size {TINY.kv_size}"
        )
        return Case(about, args, shown)

    return [
        case("the first token of a sequence", [1], [1]),
        case("a decode step: one new token, ten in the context", [1], [10]),
        case("a prefill of four tokens", [4], [4]),
        case("4-bit weights and an 8-bit cache", [1], [10], 0.5, 1.0),
        case("a decode, a chunk and a prefill in one step", [1, 3, 5], [7, 9, 5]),
    ]


def flops_with(
    layers: int = 2,
    head: Callable[..., float] | None = None,
    pairs: Callable[..., float] | None = None,
    attention: int = 4,
    size: str = "q_size",
) -> Callable[..., float]:
    """The FLOP count with one of its terms put differently."""

    def flops(shape: ModelShape, query_lens: list[int], context_lens: list[int], **_: float) -> float:
        heads = head(query_lens) if head else len(query_lens)
        seen = pairs(query_lens, context_lens) if pairs else sum(q * c for q, c in zip(query_lens, context_lens))
        return (
            layers * sum(query_lens) * shape.linear_params
            + min(layers, 2) * heads * shape.head_params
            + attention * seen * shape.layers * getattr(shape, size)
        )

    return flops


def bytes_with(
    weights: Callable[..., float] | None = None,
    cached: Callable[..., float] | None = None,
    kv: float = 1.0,
    head: int = 1,
) -> Callable[..., float]:
    """The byte count with one of its terms put differently."""

    def count(
        shape: ModelShape, query_lens: list[int], context_lens: list[int], weight_bytes: float, kv_bytes: float
    ) -> float:
        times = weights(query_lens) if weights else 1
        tokens = cached(query_lens, context_lens) if cached else sum(context_lens) + sum(query_lens)
        return (
            weight_bytes * times * (shape.linear_params + head * shape.head_params)
            + kv * shape.kv_bytes_per_token(kv_bytes) * tokens
        )

    return count


def zero(*_: Any) -> int:
    return 0


STEP_TOTALS = Check(
    "1.2",
    step_cases,
    names=("FLOPs", "bytes"),
    tolerance=1e-9,
    mistakes=(
        Mistake(
            "one-flop-a-weight",
            "Each weight is multiplied and the product added: that is 2 FLOP, not 1.",
            when=part_is(0, flops_with(layers=1)),
        ),
        Mistake(
            "head-for-every-token",
            "Only the last new token of each row needs logits: the head runs once a row.",
            when=part_is(0, flops_with(head=sum)),
        ),
        Mistake(
            "head-once",
            "Every row of the batch gets its next token: the head runs once a row.",
            when=part_is(0, flops_with(head=lambda query_lens: 1)),
        ),
        Mistake(
            "no-head-flops",
            "The head's weights are multiplied too, for one token a row.",
            when=part_is(0, flops_with(head=zero)),
        ),
        Mistake(
            "no-attention-flops",
            "Each new token also meets every token of its context: q·k, then weights·v.",
            when=part_is(0, flops_with(attention=0)),
        ),
        Mistake(
            "half-of-attention",
            "Attention is two products for each pair, q·k and weights·v, each a multiply and an "
            "add: 4 FLOP for each value of a query.",
            when=part_is(0, flops_with(attention=2)),
        ),
        Mistake(
            "pairs-of-new-tokens",
            "A new token attends to its whole context, not only to the other new tokens.",
            when=part_is(0, flops_with(pairs=lambda q, c: sum(n * n for n in q))),
        ),
        Mistake(
            "rows-see-each-other",
            "Each row attends to its own context: pair lengths row by row, then sum.",
            when=part_is(0, flops_with(pairs=lambda q, c: sum(q) * sum(c))),
        ),
        Mistake(
            "kv-heads-in-attention",
            "Shared K/V heads save memory, not arithmetic: every query head still meets every "
            "key (q_size, not kv_size).",
            when=part_is(0, flops_with(size="kv_size")),
        ),
        Mistake(
            "weights-per-token",
            "Weights are read once a step, however many tokens use them.",
            when=part_is(1, bytes_with(weights=sum)),
        ),
        Mistake(
            "weights-per-row",
            "Weights are read once a step, however many rows use them.",
            when=part_is(1, bytes_with(weights=len)),
        ),
        Mistake("no-head-bytes", "The head's weights have to be read as well.", when=part_is(1, bytes_with(head=0))),
        Mistake(
            "no-kv-bytes",
            "Attention reads K and V of the whole context out of the cache.",
            when=part_is(1, bytes_with(cached=zero)),
        ),
        Mistake(
            "kv-not-written",
            "K and V of the new tokens are written as well.",
            when=part_is(1, bytes_with(cached=lambda q, c: sum(c))),
        ),
        Mistake(
            "kv-of-new-tokens-only",
            "K and V of the whole context are read, not only those of the new tokens.",
            when=part_is(1, bytes_with(cached=lambda q, c: sum(q))),
        ),
        Mistake(
            "kv-of-new-tokens-only",
            "K and V of the whole context are read, not only those of the new tokens.",
            when=part_is(1, bytes_with(cached=lambda q, c: 2 * sum(q))),
        ),
        Mistake(
            "k-without-v",
            "Both K and V are kept: kv_bytes_per_token counts the two already.",
            when=lambda outcomes: (
                part_is(1, bytes_with(kv=0.5))(outcomes) or part_is(1, bytes_with(kv=2.0))(outcomes)
            ),
        ),
        Mistake(
            "bytes-per-value-ignored",
            "weight_bytes and kv_bytes say how many bytes a value takes: 2 is only the default.",
            when=part_is(
                1,
                lambda shape, query_lens, context_lens, **_: bytes_with()(shape, query_lens, context_lens, 2.0, 2.0),
            ),
        ),
    ),
)

CHECKS = (METRICS, STEP_TOTALS)
