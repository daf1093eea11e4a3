"""minillm: LLM inference made fast, built from scratch to be learned from."""

__version__ = "0.1.0"
