"""Prints instead."""

DIAGNOSIS = "none-returned"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    print(max(flops / peak_flops, bytes_moved / bandwidth))
