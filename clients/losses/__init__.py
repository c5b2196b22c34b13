"""Losses and penalties, as pure functions."""
