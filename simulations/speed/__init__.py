"""Measurements of time and memory: ``python -m simulations.speed WHAT``."""
