"""One prompt."""

DIAGNOSIS = "exception"


def smallest_prompts():
    return [8, 9, 1, 2, 1, 2, 3]
