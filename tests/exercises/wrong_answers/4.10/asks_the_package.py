"""Asks the package."""

from minillm.attention import flash

DIAGNOSIS = "forbidden"


def merge(out_a, lse_a, out_b, lse_b):
    return flash.merge(out_a, lse_a, out_b, lse_b)
