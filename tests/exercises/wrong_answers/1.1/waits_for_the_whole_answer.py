"""Waits for the whole answer."""

DIAGNOSIS = "ttft-is-e2e"


def request_metrics(arrival, token_times):
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    return token_times[-1] - arrival, sum(itls) / len(itls) if itls else None, itls
