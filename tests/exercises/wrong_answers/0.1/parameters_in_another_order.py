"""Parameters in another order."""

DIAGNOSIS = "signature"


def roofline_seconds(flops, bytes_moved, bandwidth, peak_flops):
    return max(flops / peak_flops, bytes_moved / bandwidth)
