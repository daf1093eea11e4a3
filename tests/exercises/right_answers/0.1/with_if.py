"""With if."""

def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    memory_seconds = bytes_moved / bandwidth
    compute_seconds = flops / peak_flops
    if compute_seconds > memory_seconds:
        return compute_seconds
    return memory_seconds
