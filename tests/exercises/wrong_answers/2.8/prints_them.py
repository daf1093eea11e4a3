"""Prints them."""

DIAGNOSIS = "none-returned"


def smallest_prompts():
    print([8, 9, 1, 2], [1, 2, 3])
