"""Adds both."""

DIAGNOSIS = "adds"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    return flops / peak_flops + bytes_moved / bandwidth
