"""Another beginning."""

DIAGNOSIS = "nothing-reused"


def smallest_prompts():
    return [1, 2, 3, 4], [8, 9, 3, 4, 5]
