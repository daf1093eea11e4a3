"""Requests and what comes back for them."""
