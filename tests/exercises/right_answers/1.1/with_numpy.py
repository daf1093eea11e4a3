"""With numpy."""

import numpy as np


def request_metrics(arrival, token_times):
    gaps = np.diff(np.array(token_times))
    tpot = float(gaps.mean()) if len(gaps) else None
    return float(token_times[0] - arrival), tpot, gaps.tolist()
