"""Forgets memory."""

DIAGNOSIS = "arithmetic-only"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    return flops / peak_flops
