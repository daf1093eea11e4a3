"""Six heads."""

DIAGNOSIS = "too-many-heads"


def smallest_sizes():
    return {"queries": 1, "keys": 1, "heads": 6, "kv_heads": 2}
