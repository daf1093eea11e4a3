"""Takes the faster."""

DIAGNOSIS = "faster-decides"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    compute_seconds = flops / peak_flops
    memory_seconds = bytes_moved / bandwidth
    if compute_seconds < memory_seconds:
        return compute_seconds
    return memory_seconds
