"""Divides by tokens."""

DIAGNOSIS = "tpot-divides-by-tokens"


def request_metrics(arrival, token_times):
    ttft = token_times[0] - arrival
    itls = []
    for i in range(1, len(token_times)):
        itls.append(token_times[i] - token_times[i - 1])
    tpot = sum(itls) / len(token_times) if itls else None
    return ttft, tpot, itls
