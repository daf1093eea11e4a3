"""Averages and adds."""

DIAGNOSIS = "lse-added"


def merge(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, lse_a + lse_b
