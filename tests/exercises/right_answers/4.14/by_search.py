"""By search."""

import itertools

import torch

from minillm.attention import reference
from minillm.course import hunts


def smallest_leak():
    sizes = itertools.product(range(1, 4), range(1, 5), range(1, 5), range(1, 5))
    for queries, keys, block, window in sorted(sizes, key=lambda size: size[0] + size[1]):
        if queries <= keys:
            wanted = reference.causal_mask(queries, keys, window, "cpu")
            if not torch.equal(hunts.seen_with_a_bug(queries, keys, block, window), wanted):
                return {"queries": queries, "keys": keys, "block": block, "window": window}
    return None
