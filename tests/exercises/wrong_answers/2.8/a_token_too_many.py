"""A token too many."""

DIAGNOSIS = "too-many-tokens"


def smallest_prompts():
    return [8, 9, 1, 2, 5], [1, 2, 3]
