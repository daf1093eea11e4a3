"""Made-up work with the shape of real work: lengths with a long tail. Seeded: the same call gives the same trace."""

from __future__ import annotations

import math
import random


def lognormal_lengths(count: int, median: float, sigma: float, maximum: int, seed: int = 0) -> list[int]:
    """`count` lengths in tokens, log-normal (median, σ of the logarithm), rounded, at least 1 and at most `maximum`.

    Prompts and answers in the field have such tails: most are short, a few are very long. Raises ValueError for a
    count, median or maximum below 1 or a negative σ.
    """
    for name, value in (("count", count), ("median", median), ("maximum", maximum)):
        if not value >= 1:
            raise ValueError(f"{name} is {value}: expected at least 1")
    if not sigma >= 0:
        raise ValueError(f"sigma is {sigma}: expected at least 0")
    rng = random.Random(seed)
    return [min(maximum, max(1, round(rng.lognormvariate(math.log(median), sigma)))) for _ in range(count)]
