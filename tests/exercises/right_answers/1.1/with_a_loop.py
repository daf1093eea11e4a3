"""With a loop."""

def request_metrics(arrival, token_times):
    itls = []
    for index in range(1, len(token_times)):
        itls.append(token_times[index] - token_times[index - 1])
    tpot = sum(itls) / len(itls) if itls else None
    return token_times[0] - arrival, tpot, itls
