"""Median gap."""

import statistics

DIAGNOSIS = "tpot-is-a-median"


def request_metrics(arrival, token_times):
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    return token_times[0] - arrival, statistics.median_low(itls) if itls else None, itls
