"""Attention: the reference everybody is tested against, and the backends a cache may choose from."""
