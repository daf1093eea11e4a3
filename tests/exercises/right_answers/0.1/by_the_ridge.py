"""By the ridge."""

def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    if flops / bytes_moved > peak_flops / bandwidth:
        return flops / peak_flops
    return bytes_moved / bandwidth
