"""Keeps the clock."""

DIAGNOSIS = "ttft-is-a-timestamp"


def request_metrics(arrival, token_times):
    ttft = token_times[0]
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    return ttft, sum(itls) / len(itls) if itls else None, itls
