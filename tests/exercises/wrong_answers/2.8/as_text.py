"""As text."""

DIAGNOSIS = "exception"


def smallest_prompts():
    return "89 12", "12 3"
