"""Calls the package."""

from minillm.measure import cost

DIAGNOSIS = "forbidden"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    return cost.roofline_seconds(flops, bytes_moved, peak_flops, bandwidth)
