"""As lists."""

DIAGNOSIS = "type"


def causal_mask(queries, keys, window, device):
    return [[j <= i and (window is None or j > i - window) for j in range(keys)]
            for i in range(keys - queries, keys)]
