"""What the server computes. NumPy only; nothing here imports torch."""
