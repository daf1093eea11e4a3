"""Two tokens."""

DIAGNOSIS = "too-many-tokens"


def smallest_sizes():
    return {"queries": 2, "keys": 2, "heads": 4, "kv_heads": 2}
