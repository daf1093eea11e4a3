"""As many as heads."""

DIAGNOSIS = "a-head-each"


def smallest_sizes():
    return {"queries": 1, "keys": 1, "heads": 2, "kv_heads": 2}
