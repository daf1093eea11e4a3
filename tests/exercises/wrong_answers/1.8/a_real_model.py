"""A real model."""

DIAGNOSIS = "too-many-heads"


def smallest_sizes():
    return {"queries": 4, "keys": 8, "heads": 9, "kv_heads": 3}
