"""Milliseconds."""

DIAGNOSIS = None


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    return 1000 * max(flops / peak_flops, bytes_moved / bandwidth)
