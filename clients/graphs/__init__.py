"""Graphs as tensors: batches cut from them, second views, and sums over neighbours."""
