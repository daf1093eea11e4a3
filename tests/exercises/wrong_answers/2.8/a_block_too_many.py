"""A block too many."""

DIAGNOSIS = "too-many-tokens"


def smallest_prompts():
    return [8, 9, 1, 2, 3, 4], [1, 2, 3, 4, 5]
