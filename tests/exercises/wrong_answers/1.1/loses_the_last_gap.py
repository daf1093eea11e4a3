"""Loses the last gap."""

DIAGNOSIS = "a-gap-is-missing"


def request_metrics(arrival, token_times):
    count = len(token_times)
    itls = [token_times[i + 1] - token_times[i] for i in range(count - 2)]
    tpot = None if count == 1 else (token_times[-1] - token_times[0]) / (count - 1)
    return token_times[0] - arrival, tpot, itls
