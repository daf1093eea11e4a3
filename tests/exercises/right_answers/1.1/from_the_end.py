"""From the end."""

def request_metrics(arrival, token_times):
    first, *rest = token_times
    if not rest:
        return first - arrival, None, []
    return first - arrival, (rest[-1] - first) / len(rest), [b - a for a, b in zip([first, *rest], rest)]
