"""Peaks the wrong way round."""

DIAGNOSIS = "peaks-swapped"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    seconds = flops / bandwidth
    return seconds if seconds > bytes_moved / peak_flops else bytes_moved / peak_flops
