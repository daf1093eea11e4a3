"""Tpot of everything."""

DIAGNOSIS = "tpot-from-arrival"


def request_metrics(arrival, token_times):
    ttft = token_times[0] - arrival
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    tpot = (token_times[-1] - arrival) / len(token_times)
    return ttft, tpot, itls
