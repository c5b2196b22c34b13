"""Malformed input, and what the application does with it."""
