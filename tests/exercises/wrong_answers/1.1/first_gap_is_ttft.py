"""First gap is ttft."""

DIAGNOSIS = "first-token-in-itl"


def request_metrics(arrival, token_times):
    itls, before = [], arrival
    for time in token_times:
        itls.append(time - before)
        before = time
    tpot = sum(itls[1:]) / (len(itls) - 1) if len(itls) > 1 else None
    return itls[0], tpot, itls
