"""Two keys."""

DIAGNOSIS = "one-head-for-all"


def smallest_sizes():
    return {"queries": 1, "keys": 2, "heads": 2, "kv_heads": 1}
