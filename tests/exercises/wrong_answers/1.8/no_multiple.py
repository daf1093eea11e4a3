"""No multiple."""

DIAGNOSIS = "exception"


def smallest_sizes():
    return {"queries": 1, "keys": 1, "heads": 3, "kv_heads": 2}
