"""Trains several clients of one process as one: their small models stacked.

``stack.py`` is the round of a stack, ``groups.py`` says which clients may share one.
"""
