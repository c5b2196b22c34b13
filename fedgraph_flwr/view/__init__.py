"""Figures and the report of runs."""
