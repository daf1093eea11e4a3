"""Speed over work."""

DIAGNOSIS = "upside-down"


def roofline_seconds(flops, bytes_moved, peak_flops, bandwidth):
    times = [peak_flops / flops, bandwidth / bytes_moved]
    return max(times)
