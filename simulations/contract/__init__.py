"""Checks that every method must pass, as functions and as a command."""
