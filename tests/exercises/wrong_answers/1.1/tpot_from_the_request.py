"""Tpot from the request."""

DIAGNOSIS = "tpot-from-arrival"


def request_metrics(arrival, token_times):
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    if not itls:
        return token_times[0] - arrival, None, []
    return token_times[0] - arrival, (token_times[-1] - arrival) / len(itls), itls
