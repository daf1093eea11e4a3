"""Between two blocks."""

DIAGNOSIS = "nothing-reused"


def smallest_prompts():
    return [9, 1, 2], [1, 2, 3]
