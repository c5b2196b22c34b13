"""Clients of each kind of learning: what is predicted, and how it is scored."""
