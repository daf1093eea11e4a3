"""The same twice."""

DIAGNOSIS = "too-many-tokens"


def smallest_prompts():
    return [1, 2, 1, 2], [1, 2, 1, 2, 1]
