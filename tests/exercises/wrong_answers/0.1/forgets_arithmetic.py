"""Forgets arithmetic."""

DIAGNOSIS = "transfers-only"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    seconds = bytes_moved / bandwidth
    return seconds
