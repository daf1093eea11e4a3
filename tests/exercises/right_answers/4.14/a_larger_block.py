"""A larger block."""
def smallest_leak():
    return {"queries": 1, "keys": 2, "block": 16, "window": 1}
