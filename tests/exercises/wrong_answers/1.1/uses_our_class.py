"""Uses our class."""

from minillm.measure.metrics import RequestTimes

DIAGNOSIS = "forbidden"


def request_metrics(arrival, token_times):
    times = RequestTimes(arrival, token_times)
    return times.ttft, times.tpot, times.itls
