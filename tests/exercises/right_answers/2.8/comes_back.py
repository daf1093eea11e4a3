"""Comes back."""

def smallest_prompts():
    return [1, 2], [1, 2, 1, 2, 3]
