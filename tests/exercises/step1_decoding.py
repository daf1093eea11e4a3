"""The checks of 1.3 and 1.4. A reader runs them with: minillm check 1.3"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minillm.cache.base import CacheError, NoCache
from minillm.cache.contiguous import ContiguousKVCache
from minillm.course.checks import Case, Check, Mistake, Outcome
from minillm.decoding import generate
from minillm.model import config_files
from minillm.model.batch import Batch
from minillm.model.transformer import Transformer

# 1.3


def sampling_cases() -> list[Case]:
    def logits(*rows: Sequence[float]) -> torch.Tensor:
        return torch.tensor(rows)

    def filtering(about: str, rows: torch.Tensor, top_p: float, shown: str) -> Case:
        return Case(about, {"logits": rows, "top_p": top_p}, f"{shown}, top_p={top_p}", "top_p_filter")

    fewer = torch.tensor([[0.1, 0.6, 0.3]]).log()
    two = torch.tensor([[0.5, 0.05, 0.25, 0.2], [0.02, 0.03, 0.05, 0.9]]).log()
    many = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)) * 2
    return [
        Case("one row", {"logits": logits([0.1, 2.0, -1.0])}, "logits=[[0.1, 2.0, -1.0]]", "greedy"),
        Case(
            "two rows",
            {"logits": logits([5.0, 2.0, 1.0], [6.0, 7.0, 8.0])},
            "logits=[[5.0, 2.0, 1.0], [6.0, 7.0, 8.0]]",
            "greedy",
        ),
        Case(
            "two equal logits: the lower id",
            {"logits": logits([1.0, 3.0, 3.0])},
            "logits=[[1.0, 3.0, 3.0]]",
            "greedy",
        ),
        filtering("probabilities 0.1, 0.6, 0.3", fewer, 0.7, "logits=log([[0.1, 0.6, 0.3]])"),
        filtering("top_p below the likeliest token's probability", fewer, 0.3, "logits=log([[0.1, 0.6, 0.3]])"),
        filtering(
            "two rows, one nearly certain", two, 0.85, "logits=log([[0.5, 0.05, 0.25, 0.2], [0.02, 0.03, 0.05, 0.9]])"
        ),
        filtering("nothing to drop", logits([3.0, 3.0]), 1.0, "logits=[[3.0, 3.0]]"),
        filtering("three rows of 50 random logits", many, 0.9, "logits: random, [3, 50]"),
    ]


def nucleus(
    logits: torch.Tensor,
    top_p: float,
    *,
    inclusive: bool = False,
    unsort: bool = True,
    softmax: bool = True,
    dim: int = -1,
    dropped: float = float("-inf"),
    descending: bool = True,
) -> torch.Tensor:
    """top_p_filter with a switch for each mistake."""
    ordered, ids = logits.sort(dim=dim, descending=descending, stable=True)
    probabilities = ordered.softmax(dim=dim) if softmax else ordered
    before = probabilities.cumsum(dim=dim) - (0 if inclusive else probabilities)
    ordered = ordered.masked_fill(before > top_p if inclusive else before >= top_p, dropped)
    return torch.zeros_like(logits).scatter(dim, ids, ordered) if unsort else ordered


def cut(**switches: Any) -> Callable[..., torch.Tensor]:
    return lambda logits, top_p: nucleus(logits, top_p, **switches)


def only_first_past(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < top_p, float("-inf"))


SAMPLING = Check(
    "1.3",
    sampling_cases,
    tolerance=1e-5,
    mistakes=(
        Mistake(
            "argmax-over-rows",
            "A row is one request: look for the largest along the vocabulary, the last dimension.",
            like=lambda logits: logits.argmax(dim=0),
            function="greedy",
        ),
        Mistake(
            "one-token-for-all",
            "Each row has its own answer: without dim, argmax looks at all rows as one.",
            like=lambda logits: logits.argmax(),
            function="greedy",
        ),
        Mistake(
            "the-logit-itself",
            "Wanted is the place of the largest logit, its id, not its value.",
            like=lambda logits: logits.amax(dim=-1),
            function="greedy",
        ),
        Mistake(
            "keeps-a-dimension",
            "One id a row, [B]: is keepdim=True left over?",
            like=lambda logits: logits.argmax(dim=-1, keepdim=True),
            function="greedy",
        ),
        Mistake(
            "highest-of-equals",
            "Of equal logits the lowest id wins.",
            function="greedy",
            like=lambda logits: logits.shape[-1] - 1 - logits.flip(-1).argmax(dim=-1),
        ),
        Mistake(
            "least-likely",
            "The largest logit is the most likely token; argmin or an ascending sort gives the least.",
            like=lambda logits: logits.argmin(dim=-1),
            function="greedy",
        ),
        Mistake(
            "nucleus-too-small",
            "The token that carries the sum past top_p belongs to the nucleus: compare the sum of "
            "the tokens before it, without itself.",
            like=cut(inclusive=True),
            function="top_p_filter",
        ),
        Mistake(
            "not-unsorted",
            "The logits came back sorted: each has to return to the place of its own token id.",
            like=cut(unsort=False),
            function="top_p_filter",
        ),
        Mistake(
            "logits-summed",
            "Sum probabilities, not logits: a softmax is missing.",
            like=cut(softmax=False),
            function="top_p_filter",
        ),
        Mistake(
            "zero-instead-of-minus-infinity",
            "A logit of 0 is not a probability of 0: exp(0) is 1. What was dropped must become -inf.",
            like=cut(dropped=0.0),
            function="top_p_filter",
        ),
        Mistake(
            "ascending",
            "Start from the most likely token: is the sort ascending?",
            like=cut(descending=False),
            function="top_p_filter",
        ),
        Mistake(
            "threshold",
            "top_p bounds the sum of what is kept, not the probability of each token.",
            like=only_first_past,
            function="top_p_filter",
        ),
        Mistake(
            "threshold",
            "top_p bounds the sum of what is kept, not the probability of each token.",
            like=lambda logits, top_p: logits.masked_fill(logits.softmax(-1) < 1 - top_p, float("-inf")),
            function="top_p_filter",
        ),
        Mistake(
            "returns-probabilities",
            "Return logits: those kept as they came, -inf elsewhere.",
            like=lambda logits, top_p: nucleus(logits, top_p).softmax(-1),
            function="top_p_filter",
        ),
        Mistake(
            "across-rows",
            "A row is one request: sort and sum along the last dimension.",
            like=cut(dim=0),
            function="top_p_filter",
        ),
    ),
)

# 1.4


class WatchedModel(Transformer):
    """A tiny model with random weights that remembers how many tokens each step brought."""

    def __init__(self) -> None:
        config = config_files.from_hf(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": 40,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "max_position_embeddings": 64,
                "rms_norm_eps": 1e-5,
                "rope_theta": 100.0,
                "tie_word_embeddings": False,
            }
        )
        super().__init__(config, dtype=torch.float64)
        generator = torch.Generator().manual_seed(0)
        for weight in self.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
        self.steps: list[int] = []

    def forward(self, batch: Batch, cache: Any) -> torch.Tensor:
        logits = super().forward(batch, cache)
        self.steps.append(len(batch.token_ids))
        return logits


def follow(function: Callable[..., Any], prompt_ids: list[int], max_tokens: int, stop_ids: list[int]) -> tuple:
    """(tokens, tokens given to the model in each step, steps run when the first token came)."""
    model = WatchedModel()
    cache = ContiguousKVCache(model.kv_specs(), max_seqs=1, max_len=64, dtype=torch.float64)
    stream = function(model, cache, prompt_ids, lambda logits: int(logits.argmax()), max_tokens, stop_ids)
    if stream is None:
        return None
    tokens, before_first = [], 0
    for token in stream:
        before_first = before_first or len(model.steps)
        tokens.append(int(token))
        if len(tokens) > max_tokens + 3:
            break
    return tokens, model.steps, before_first


def loop_cases() -> list[Case]:
    def case(about: str, prompt_ids: list[int], max_tokens: int, stop_ids: list[int]) -> Case:
        return Case(about, {"prompt_ids": prompt_ids, "max_tokens": max_tokens, "stop_ids": stop_ids})

    prompt = [24, 3, 11, 2]
    model = WatchedModel()
    said = list(
        generate.naive_tokens(model, NoCache(model.kv_specs()), prompt, lambda logits: int(logits.argmax()), 3, [])
    )
    return [
        case("one token from a prompt of four", prompt, 1, []),
        case("two tokens", prompt, 2, []),
        case("six tokens", prompt, 6, []),
        case("the third token is a stop token", prompt, 6, said[-1:]),
        case("a prompt of one token", [5], 4, []),
    ]


def prompt_in_pieces(outcomes: Sequence[Outcome]) -> bool:
    """Right tokens, but the first steps brought one token each."""
    return all(
        o.error is None and o.came[1][: len(o.case.args["prompt_ids"])] == [1] * len(o.case.args["prompt_ids"])
        for o in outcomes
    )


def everything_again(outcomes: Sequence[Outcome]) -> bool:
    """Each step brought one token more than the one before."""
    return all(
        o.error is None and o.came[1] == list(range(o.came[1][0], o.came[1][0] + len(o.came[1]))) for o in outcomes
    )


def misplaced(outcomes: Sequence[Outcome]) -> bool:
    """The cache refused a step that did not begin where its sequence ended."""
    failed = next(o for o in outcomes if not o.right)
    return isinstance(failed.error, CacheError) and "continues at token" in str(failed.error)


def extra_step(outcomes: Sequence[Outcome]) -> bool:
    """Every token right, and one step more than there are tokens."""
    return all(
        o.error is None and o.came[0] == o.expected[0] and o.came[1] == [*o.expected[1], 1]
        for o in outcomes
        if not o.right
    )


def not_streamed(outcomes: Sequence[Outcome]) -> bool:
    """Right tokens and steps, all before the first token was handed out."""
    return all(o.error is None and o.came[:2] == o.expected[:2] and o.came[2] == len(o.came[1]) for o in outcomes)


def tokens_are(change: Callable[[list[int], dict], list[int]]) -> Callable[[Sequence[Outcome]], bool]:
    """A predicate: what came are the expected tokens after `change`."""
    return lambda outcomes: all(
        o.error is None and o.came[0] == change(list(o.expected[0]), o.case.args) for o in outcomes
    )


def without_stop(tokens: list[int], args: dict) -> list[int]:
    return tokens[:-1] if tokens and tokens[-1] in args["stop_ids"] else tokens


def past_the_stop(outcomes: Sequence[Outcome]) -> bool:
    """Only what should have stopped is wrong, and it went on."""
    return all(
        o.error is None and (o.right or (o.case.args["stop_ids"] and len(o.came[0]) > len(o.expected[0])))
        for o in outcomes
    )


def one_more(outcomes: Sequence[Outcome]) -> bool:
    return all(
        o.error is None and (bool(o.case.args["stop_ids"]) or len(o.came[0]) == o.case.args["max_tokens"] + 1)
        for o in outcomes
    )


CACHED_LOOP = Check(
    "1.4",
    loop_cases,
    call=follow,
    names=("tokens", "tokens given to the model in each step", "steps run when the first token came"),
    mistakes=(
        Mistake(
            "wrong-start",
            "start is the number of tokens cached before this step: after each step it grows by as many "
            "as the step brought.",
            when=misplaced,
        ),
        Mistake(
            "everything-again",
            "What is cached need not be run again: after the prefill a step brings one token.",
            when=everything_again,
        ),
        Mistake(
            "prompt-in-pieces",
            "Prefill brings the whole prompt in one step, so that weights are read once for all of its tokens.",
            when=prompt_in_pieces,
        ),
        Mistake(
            "stop-token-swallowed",
            "The stop token is yielded too, as the last: look at the order of yield and the test.",
            when=tokens_are(without_stop),
        ),
        Mistake("stop-ignored", "A token in stop_ids is the last.", when=past_the_stop),
        Mistake(
            "one-token-too-many", "The prefill gives the first token already: max_tokens counts it.", when=one_more
        ),
        Mistake(
            "one-token-too-few",
            "The prefill's logits give the first token: yield that one too.",
            when=tokens_are(lambda tokens, args: tokens[1:]),
        ),
        Mistake(
            "one-token-too-few",
            "The first token counts as one of max_tokens, not as one before them.",
            when=tokens_are(lambda tokens, args: tokens if args["stop_ids"] else tokens[:-1]),
        ),
        Mistake("extra-step", "The last token's K and V serve nobody: no step is needed after it.", when=extra_step),
        Mistake(
            "not-streamed",
            "yield each token when it is chosen, so that the reader sees it while the next is computed.",
            when=not_streamed,
        ),
    ),
)

CHECKS = (SAMPLING, CACHED_LOOP)
