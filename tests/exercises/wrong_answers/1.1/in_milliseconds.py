"""In milliseconds."""

DIAGNOSIS = None


def request_metrics(arrival, token_times):
    itls = [1000 * (b - a) for a, b in zip(token_times, token_times[1:])]
    return 1000 * (token_times[0] - arrival), sum(itls) / len(itls) if itls else None, itls
