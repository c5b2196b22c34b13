"""Kill runs, resume them, compare the end."""
