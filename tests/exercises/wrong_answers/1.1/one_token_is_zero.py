"""One token is zero."""

DIAGNOSIS = "one-token"


def request_metrics(arrival, token_times):
    itls = [b - a for a, b in zip(token_times, token_times[1:])]
    return token_times[0] - arrival, sum(itls) / max(1, len(itls)), itls
