"""The checks of 4.9 and 4.10. A reader runs them with: minillm check 4.9"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minillm.course.checks import Case, Check, Mistake

INF = float("inf")
Tensors = tuple[torch.Tensor, ...]


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def few(tensors: dict[str, torch.Tensor]) -> str:
    """Every value of them, for inputs that are small enough to be computed by hand."""
    def shown(value: object) -> str:
        return f"[{', '.join(map(shown, value))}]" if isinstance(value, list) else f"{value:g}"

    return ", ".join(f"{name}={shown(value.tolist())}" for name, value in tensors.items())


# 4.9


def update_cases() -> list[Case]:
    def case(about: str, scores: list, v: list, m: list, total: list, acc: list,
             dtype: torch.dtype = torch.float32) -> Case:
        args = {name: tensor(value).to(dtype) for name, value in
                {"scores": scores, "v": v, "m": m, "total": total, "acc": acc}.items()}
        return Case(about, args, few(args) + (", float64" if dtype == torch.float64 else ""))

    one = {"m": [[1]], "total": [[2]], "acc": [[[3]]]}  # H = B = D_v = 1
    return [
        case("the first tile: no key was seen before", [[[0, 1]]], [[[2], [4]]], [[-INF]], [[0]], [[[0]]]),
        case("a larger score comes", [[[3]]], [[[5]]], **one),
        case("only smaller scores come", [[[0, -1]]], [[[5], [7]]], **one),
        case("one of two keys is hidden", [[[-INF, 2]]], [[[5], [7]]], **one),
        case("all keys of the tile are hidden", [[[-INF, -INF]]], [[[5], [7]]], **one),
        case("no key is seen, and none was before", [[[-INF]]], [[[5]]], [[-INF]], [[0]], [[[0]]]),
        case("large scores", [[[1000, 999]]], [[[5], [7]]], [[998]], [[2]], [[[3]]]),
        case("scores far below 0", [[[-1000, -999]]], [[[5], [7]]], [[-1001]], [[2]], [[[3]]]),
        case("two queries, the second sees nothing yet", [[[1, 2], [-INF, -INF]]], [[[5, 1], [7, 2]]],
             [[3, -INF]], [[2, 0]], [[[4, 6], [0, 0]]]),
        case("two heads, two queries, two keys, two values, float64",
             [[[1, 0], [2, 4]], [[0, 3], [1, 1]]], [[[5, 1], [7, 2]], [[1, 4], [8, 3]]],
             [[2, 1], [0, 5]], [[3, 1], [2, 4]], [[[4, 6], [1, 2]], [[9, 5], [3, 7]]], torch.float64),
    ]


def update(scores: torch.Tensor, v: torch.Tensor, m: torch.Tensor, total: torch.Tensor, acc: torch.Tensor, *,
           largest: Callable[..., torch.Tensor] = lambda m, scores: torch.maximum(m, scores.amax(-1)),
           base: Callable[..., torch.Tensor] = lambda new_m, m, scores: new_m.masked_fill(new_m == -INF, 0),
           factor: Callable[..., torch.Tensor] = lambda m, base: torch.exp(m - base),
           power: Callable[..., torch.Tensor] = lambda scores, base: torch.exp(scores - base[..., None]),
           old: Callable[..., torch.Tensor] = lambda part, factor: part * factor,
           old_total: Callable[..., torch.Tensor] | None = None,
           old_acc: Callable[..., torch.Tensor] | None = None,
           new: Callable[..., torch.Tensor] = lambda part, factor: part,
           told: Callable[..., torch.Tensor] = lambda new_m, m: new_m,
           end: Callable[..., torch.Tensor] = lambda acc, total: acc) -> Tensors:
    """online_softmax_update with a switch for each mistake."""
    new_m = largest(m, scores)
    zero = base(new_m, m, scores)
    weights, rescale = power(scores, zero), factor(m, zero)
    new_total = (old_total or old)(total, rescale) + new(weights.sum(-1), rescale)
    new_acc = (old_acc or old)(acc, rescale[..., None]) + new(weights @ v, rescale[..., None])
    return told(new_m, m), new_total, end(new_acc, new_total)


def updates(**switches: Callable) -> Callable[..., Tensors]:
    return lambda scores, v, m, total, acc: update(scores, v, m, total, acc, **switches)


def as_it_was(part: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return part


def unguarded(new_m: torch.Tensor, m: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return new_m


RESCALE = "What was summed so far is of powers less the old m. A larger m makes it smaller: times e^(m_old - m_new)."
EMPTY = "A row that has seen no key has m = -inf, and -inf - -inf is NaN: subtract 0 there, then e^-inf is 0."
PER_QUERY = "Each query of each head has a largest score of its own: the maximum goes over the keys only."
ONLINE = Check(
    "4.9",
    update_cases,
    names=("m:", "total:", "acc:"),
    tolerance=1e-5,
    telling=True,
    mistakes=(
        Mistake("not-rescaled", RESCALE, like=updates(old=as_it_was)),
        Mistake("not-rescaled", RESCALE + " That goes for acc too.", like=updates(old_acc=as_it_was)),
        Mistake("not-rescaled", RESCALE + " That goes for total too.", like=updates(old_total=as_it_was)),
        Mistake("factor-not-widened", "rescale is one number a query: for acc it gets a last dimension, for D_v.",
                like=updates(old_acc=lambda acc, factor: acc * factor[..., 0])),
        Mistake("rescaled-the-wrong-way", "It is the other way round: times e^(m_old - m_new), at most 1.",
                like=updates(factor=lambda m, base: torch.exp(base - m))),
        Mistake("rescaled-by-a-difference", "Sums of powers are put right by a power: e^(m_old - m_new).",
                like=updates(factor=lambda m, base: m - base)),
        Mistake("new-part-rescaled", "The new weights are of the new m already: only what was summed before is not.",
                like=updates(old=as_it_was, new=lambda part, factor: part * factor)),
        Mistake("all-rescaled", "The new weights are of the new m already: only what was summed before is not.",
                like=updates(new=lambda part, factor: part * factor)),
        Mistake("empty-row-is-nan", EMPTY, like=updates(base=unguarded)),
        Mistake("empty-row-is-nan", EMPTY + " rescale needs it too.", like=updates(
            factor=lambda m, base: torch.exp(m - base.masked_fill(m == -INF, -INF)))),
        Mistake("empty-row-is-nan", EMPTY + " The weights need it too.", like=updates(
            base=unguarded, factor=lambda m, base: torch.exp(m - base).nan_to_num(0.0))),
        Mistake(
            "hidden-counts",
            "A row that sees nothing would get the mean of V: a hidden score has the weight 0, whatever m is.",
            like=updates(largest=lambda m, scores: torch.maximum(m, scores.clamp(min=-1e30).amax(-1)),
                         power=lambda scores, base: torch.exp(scores.clamp(min=-1e30) - base[..., None]))),
        Mistake("m-of-the-tile", "m is the largest of all scores so far, not of this tile.",
                like=updates(largest=lambda m, scores: scores.amax(-1))),
        Mistake("m-of-the-tile", "m is the largest of all scores so far, not of this tile.", like=updates(
            largest=lambda m, scores: scores.amax(-1), base=unguarded)),
        Mistake("tile-less-its-own", "Old and new powers are added, so all must be less the same: the new m.",
                like=updates(power=lambda scores, base: torch.exp(scores - scores.amax(-1, keepdim=True)))),
        Mistake("tile-less-its-own", "Old and new powers are added, so all must be less the same: the new m.",
                like=updates(power=lambda scores, base: torch.exp(
                    scores - scores.amax(-1, keepdim=True).masked_fill(scores.amax(-1, keepdim=True) == -INF, 0)))),
        Mistake("less-the-old-m", "The tile's powers are less the new m: the old one is too small, or -inf.",
                like=lambda scores, v, m, total, acc: with_old_m(scores, v, m, total, acc)),
        Mistake("not-shifted", "Without subtracting the largest score e^1000 is inf: all powers are less m.",
                like=updates(base=lambda new_m, m, scores: torch.zeros_like(new_m), old=as_it_was)),
        Mistake("tile-not-shifted", "The tile's powers are less m too: e^1000 is inf.",
                like=updates(power=lambda scores, base: torch.exp(scores))),
        Mistake("divided-early", "acc stays a sum: it is divided once, when the last tile is done.",
                like=updates(end=lambda acc, total: acc / total[..., None])),
        Mistake("divided-early", "acc stays a sum: it is divided once, when the last tile is done.",
                like=updates(end=lambda acc, total: acc / total.masked_fill(total == 0, 1)[..., None])),
        Mistake("softmax-of-the-tile", "A softmax of the tile alone divides by the tile's sum: that is not known yet.",
                like=updates(power=lambda scores, base: torch.softmax(scores, dim=-1))),
        Mistake("m-not-handed-on", "What is returned is of the new m: hand that on, or the next rescaling is wrong.",
                like=updates(told=lambda new_m, m: m)),
        Mistake("one-m-for-all", PER_QUERY, like=updates(largest=lambda m, scores: torch.maximum(m, scores.max()))),
        Mistake("one-m-for-all", PER_QUERY, like=updates(
            largest=lambda m, scores: torch.maximum(m, scores.amax((1, 2))[:, None]))),
        Mistake("m-over-queries", PER_QUERY, like=updates(
            largest=lambda m, scores: torch.maximum(m, scores.amax(-2)))),
        Mistake("base-two", "The powers are of e. A kernel takes powers of 2, and scores times log2(e) with them.",
                like=updates(factor=lambda m, base: torch.exp2(m - base),
                             power=lambda scores, base: torch.exp2(scores - base[..., None]))),
        Mistake("old-forgotten", "What earlier tiles gave stays part of the sum.",
                like=updates(old=lambda part, factor: torch.zeros_like(part))),
        Mistake("total-and-acc-swapped", "The order is m, total, acc.",
                like=lambda **args: [update(**args)[part] for part in (0, 2, 1)]),
    ),
)


def with_old_m(scores: torch.Tensor, v: torch.Tensor, m: torch.Tensor, total: torch.Tensor,
               acc: torch.Tensor) -> Tensors:
    """The tile's powers less the old m, then everything rescaled as if they were less the new one."""
    weights = torch.exp(scores - m[..., None])
    new_m = torch.maximum(m, scores.amax(-1))
    rescale = torch.exp(m - new_m.masked_fill(new_m == -INF, 0))
    return new_m, total * rescale + weights.sum(-1), acc * rescale[..., None] + weights @ v


# 4.10


def merge_cases() -> list[Case]:
    def case(about: str, out_a: list, lse_a: list, out_b: list, lse_b: list,
             dtype: torch.dtype = torch.float32) -> Case:
        args = {name: tensor(value).to(dtype) for name, value in
                {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}.items()}
        return Case(about, args, few(args) + (", float64" if dtype == torch.float64 else ""))

    log3 = float(torch.tensor(3.0).log())
    return [  # S_q, H, D_v
        case("both parts weigh the same", [[[2]]], [[3]], [[[4]]], [[3]]),
        case("one key, and three keys, all of score 0", [[[8]]], [[0]], [[[4]]], [[log3]]),
        case("the first part weighs more", [[[8]]], [[2]], [[[4]]], [[1]]),
        case("the second part has no keys", [[[8]]], [[2]], [[[0]]], [[-INF]]),
        case("the first part has no keys", [[[0]]], [[-INF]], [[[4]]], [[-3]]),
        case("neither part has keys", [[[0]]], [[-INF]], [[[0]]], [[-INF]]),
        # in float64: a float32 lse of 1000 has an error of 3e-5 itself, and so have the weights less it
        case("large scores", [[[8]]], [[1000]], [[[4]]], [[1001]], torch.float64),
        case("scores far below 0", [[[8]]], [[-1000]], [[[4]]], [[-1001]], torch.float64),
        case("two values", [[[8, 1]]], [[2]], [[[4, 3]]], [[1]]),
        case("two queries", [[[8]], [[1]]], [[2], [-1]], [[[4]], [[3]]], [[1], [1]]),
        case("two queries, two heads, two values, float64", [[[8, 1], [2, 5]], [[3, 7], [6, 4]]], [[2, 1], [0, 3]],
             [[[4, 3], [9, 2]], [[5, 1], [7, 8]]], [[1, 3], [2, 0]], torch.float64),
    ]


def merged(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor, *,
           joint: Callable[..., torch.Tensor] = torch.logaddexp,
           base: Callable[..., torch.Tensor] = lambda lse: lse.masked_fill(lse == -INF, 0),
           weigh: Callable[..., Tensors] = lambda a, b, base: (torch.exp(a - base), torch.exp(b - base)),
           beside: Callable[..., torch.Tensor] = lambda weight: weight[..., None],
           told: Callable[..., torch.Tensor] = lambda lse: lse) -> Tensors:
    """merge with a switch for each mistake."""
    lse = joint(lse_a, lse_b)
    weight_a, weight_b = weigh(lse_a, lse_b, base(lse))
    return beside(weight_a) * out_a + beside(weight_b) * out_b, told(lse)


def merges(**switches: Callable) -> Callable[..., Tensors]:
    return lambda out_a, lse_a, out_b, lse_b: merged(out_a, lse_a, out_b, lse_b, **switches)


def naive_lse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.exp(a) + torch.exp(b))


def unshifted(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> Tensors:
    total = torch.exp(a) + torch.exp(b)
    return torch.exp(a) / total, torch.exp(b) / total


def below_the_larger(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> Tensors:
    """Weights that sum to 1, however lse was made."""
    a, b = torch.exp(a - torch.maximum(a, b)).nan_to_num(0.0), torch.exp(b - torch.maximum(a, b)).nan_to_num(0.0)
    return (a / (a + b)).nan_to_num(0.0), (b / (a + b)).nan_to_num(0.0)


def by_the_larger(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> Tensors:
    """below_the_larger without a thought for -inf."""
    a, b = torch.exp(a - torch.maximum(a, b)), torch.exp(b - torch.maximum(a, b))
    return a / (a + b), b / (a + b)


def lse_by_the_larger(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    largest = torch.maximum(a, b)
    return largest + torch.log(torch.exp(a - largest) + torch.exp(b - largest))


def winner(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> Tensors:
    return (a >= b).to(a.dtype), (a < b).to(a.dtype)


OVERFLOW = "e^lse is inf for a large lse, and no weight made of it is right: subtract before the power is taken."
ZERO = "Without keys e^lse is 0, and 0 / 0 is NaN. "
LARGER = "lse of both is log(e^a + e^b): the larger of the two leaves out what the other adds."
NO_KEYS = ("Two parts without keys have the lse -inf: -inf - -inf is NaN, and so is 0 / 0. Subtract 0 there, then "
           "e^-inf is 0, and nothing has to be divided.")
AXIS = "A weight belongs to a query and head: its new dimension is the last, beside the D_v values."
MERGE = Check(
    "4.10",
    merge_cases,
    names=("out:", "lse:"),
    tolerance=1e-5,
    telling=True,
    mistakes=(
        Mistake("plain-average", "The parts do not weigh the same: e^lse says how much each one saw.",
                like=merges(weigh=lambda a, b, base: (torch.full_like(a, 0.5), torch.full_like(a, 0.5)))),
        Mistake("two-empty-parts", NO_KEYS, like=merges(base=lambda lse: lse)),
        Mistake("two-empty-parts", NO_KEYS, like=merges(weigh=lambda a, b, base: (
            torch.sigmoid(a - b), torch.sigmoid(b - a)))),
        Mistake("two-empty-parts", NO_KEYS, like=merges(weigh=lambda a, b, base: torch.softmax(
            torch.stack([a, b]), dim=0).unbind())),
        Mistake("two-empty-parts", NO_KEYS, like=merges(joint=lse_by_the_larger, weigh=by_the_larger)),
        Mistake("overflow", ZERO + OVERFLOW, like=merges(joint=naive_lse, weigh=unshifted)),
        Mistake("overflow", ZERO + OVERFLOW, like=merges(weigh=unshifted)),
        Mistake("overflow", OVERFLOW + " torch.logaddexp does that for lse.", like=merges(joint=naive_lse)),
        Mistake("lse-of-the-larger", LARGER, like=merges(joint=torch.maximum)),
        Mistake("lse-of-the-larger", LARGER, like=merges(joint=torch.maximum, weigh=below_the_larger)),
        Mistake("lse-added", "Sums of powers are added, not their logarithms: log(e^a + e^b).",
                like=merges(joint=torch.add)),
        Mistake("lse-added", "Sums of powers are added, not their logarithms: log(e^a + e^b).",
                like=merges(joint=torch.add, weigh=below_the_larger)),
        Mistake("sum-without-its-log", "lse is a logarithm, so that parts can be merged again: log(e^a + e^b).",
                like=merges(told=torch.exp)),
        Mistake("base-two", "lse is the natural logarithm: powers of e, and torch.logaddexp.", like=merges(
            joint=torch.logaddexp2, weigh=lambda a, b, base: (torch.exp2(a - base), torch.exp2(b - base)))),
        Mistake("base-two", "lse is the natural logarithm, so the weights are powers of e.", like=merges(
            weigh=lambda a, b, base: (torch.exp2(a - base), torch.exp2(b - base)))),
        Mistake("lse-of-one", "The lse of both together is asked for, or the next merge weighs this one wrong.",
                like=merges(joint=lambda a, b: a, weigh=below_the_larger)),
        Mistake("weights-do-not-sum-to-1", "Each part is a mean already: the two weights sum to 1. Less lse, they do.",
                like=merges(weigh=lambda a, b, base: (torch.exp(a), torch.exp(b)))),
        Mistake("weights-do-not-sum-to-1", "Each part is a mean already: the two weights sum to 1. Less lse, they do.",
                like=merges(weigh=lambda a, b, base: (torch.ones_like(a), torch.ones_like(b)))),
        Mistake("weighed-by-lse", "lse is a logarithm: the weight of a part is a power of it.",
                like=merges(weigh=lambda a, b, base: (a / (a + b), b / (a + b)))),
        Mistake("weighed-by-lse", "lse is a logarithm: the weight of a part is a power of it.",
                like=merges(weigh=lambda a, b, base: (a - base, b - base))),
        Mistake("weights-swapped", "The part that saw more weighs more: are the weights the wrong way round?",
                like=merges(weigh=lambda a, b, base: (torch.exp(b - base), torch.exp(a - base)))),
        Mistake("upside-down", "e^(lse_a - lse) is at most 1: is the difference the wrong way round?",
                like=merges(weigh=lambda a, b, base: (torch.exp(base - a), torch.exp(base - b)))),
        Mistake("larger-takes-all", "The part that weighs less still counts, by its share.",
                like=merges(weigh=winner)),
        Mistake("order-swapped", "The order is out, lse.", like=lambda **args: merged(**args)[::-1]),
        Mistake("weight-beside-the-wrong-axis", AXIS, like=merges(beside=lambda weight: weight)),
        Mistake("weight-beside-the-wrong-axis", AXIS, like=merges(beside=lambda weight: weight[:, None])),
        Mistake("weight-beside-the-wrong-axis", AXIS, like=merges(beside=lambda weight: weight[None])),
    ),
)

CHECKS = (ONLINE, MERGE)
