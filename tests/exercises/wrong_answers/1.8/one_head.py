"""One head."""

DIAGNOSIS = "one-head-for-all"


def smallest_sizes():
    return {"queries": 1, "keys": 1, "heads": 1, "kv_heads": 1}
