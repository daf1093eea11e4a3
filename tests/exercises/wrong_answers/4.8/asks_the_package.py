"""Asks the package."""

from minillm.attention import reference

DIAGNOSIS = "forbidden"


def causal_mask(queries, keys, window, device):
    return reference.causal_mask(queries, keys, window, device)
