"""Gaps from the first token."""

DIAGNOSIS = "itl-from-the-first"


def request_metrics(arrival, token_times):
    first, last, count = token_times[0], token_times[-1], len(token_times)
    return first - arrival, (last - first) / (count - 1) if count > 1 else None, [t - first for t in token_times[1:]]
