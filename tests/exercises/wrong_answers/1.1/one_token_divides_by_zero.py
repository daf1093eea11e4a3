"""One token divides by zero."""

DIAGNOSIS = "one-token"


def request_metrics(arrival, token_times):
    ttft = token_times[0] - arrival
    itls = [token_times[i + 1] - token_times[i] for i in range(len(token_times) - 1)]
    return ttft, sum(itls) / len(itls), itls
