"""Begin alike."""

DIAGNOSIS = "begin-alike"


def smallest_prompts():
    return [1, 2, 3, 4], [1, 2, 3, 4, 5]
